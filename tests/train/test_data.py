"""Training data: token files, the tutorial's windows, and the same batches for a resumed run."""

import gzip
import lzma
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gptcli.errors import ResourceError, UsageError
from gptcli.tokenizer import Tokenizer, gpt2_encoding
from gptcli.train import data
from gptcli.train.data import EndlessBatches, GPTDatasetV1, create_dataloader_v1, map_tokens, write_tokens
from tests.models import tiny_config

SMALL = tiny_config(vocab_size=400, tokenizer="gpt2-first-ranks")
VERDICT = "I HAD always thought Jack Gisburn rather a cheap genius--though a good fellow enough"


class TestFirstRanks:
    def test_ids_are_gpt2s_own_and_end_of_text_is_the_last(self):
        tokenizer = Tokenizer(SMALL)
        assert tokenizer.end_of_text == 399
        assert tokenizer.encode("the a<|endoftext|>")[-1] == 399
        full = gpt2_encoding()
        for token in range(399):
            assert tokenizer.token_bytes(token) == full.decode_single_token_bytes(token)
        assert tokenizer.token_bytes(399) == b"<|endoftext|>"
        assert tokenizer.token_bytes(400) is None

    @given(st.text())
    def test_any_text_survives_encoding_and_decoding(self, text):
        tokenizer = Tokenizer(SMALL)
        ids = tokenizer.encode(text, plain=True)
        assert tokenizer.decode(ids) == text
        assert all(i < 399 for i in ids)

    @pytest.mark.parametrize("vocab_size", [256, 50258])
    def test_an_invalid_vocabulary_size_is_refused(self, vocab_size):
        with pytest.raises(Exception, match="needs a vocab_size from 257 to 50257"):
            tiny_config(vocab_size=vocab_size, tokenizer="gpt2-first-ranks")


class TestTheTutorial:
    def test_the_small_example(self):
        loader = create_dataloader_v1(VERDICT, batch_size=1, max_length=4, stride=1, shuffle=False)
        first, second = islice(loader, 2)
        assert [part.tolist() for part in first] == [[[40, 367, 2885, 1464]], [[367, 2885, 1464, 1807]]]
        assert [part.tolist() for part in second] == [[[367, 2885, 1464, 1807]], [[2885, 1464, 1807, 3619]]]

    @given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9))
    def test_windows_are_those_of_the_tutorials_loop(self, n, max_length, stride):
        ids = np.arange(n)
        expected = [
            (list(range(i, i + max_length)), list(range(i + 1, i + max_length + 1)))
            for i in range(0, n - max_length, stride)
        ]
        dataset = GPTDatasetV1(ids, None, max_length, stride)
        assert [(a.tolist(), b.tolist()) for a, b in (dataset[i] for i in range(len(dataset)))] == expected

    def test_tiktokens_tokenizer_works_as_well(self):
        encoding: tiktoken.Encoding = gpt2_encoding()
        dataset = GPTDatasetV1("Hello<|endoftext|>, I am", encoding, 4, 1)
        assert dataset[0][0].tolist() == [15496, 50256, 11, 314]

    def test_the_defaults_of_the_loader(self):
        loader = create_dataloader_v1("word " * 2000)
        inputs, targets = next(iter(loader))
        assert inputs.shape == targets.shape == (4, 256)
        assert inputs.dtype == torch.int64


class TestTokenFiles:
    @pytest.fixture
    def tokenizer(self):
        return Tokenizer(SMALL)

    def write(self, tokenizer, tmp_path, *texts: str) -> tuple[list[int], int]:
        sources = []
        for number, text in enumerate(texts):
            sources.append(tmp_path / f"{number}.txt")
            sources[-1].write_text(text, newline="")
        n_bytes = write_tokens(sources, tokenizer, 400, tmp_path / "t")
        return map_tokens(tmp_path / "t", 400).tolist(), n_bytes

    def test_documents_are_joined_by_end_of_text(self, tokenizer, tmp_path):
        ids, n_bytes = self.write(tokenizer, tmp_path, "one\n<|endoftext|>\ntwo\n\n", "three")
        assert tokenizer.decode(ids) == "one<|endoftext|>two<|endoftext|>three<|endoftext|>"
        assert n_bytes == len("onetwothree")

    def test_compressed_files_are_read(self, tokenizer, tmp_path):
        (tmp_path / "a.xz").write_bytes(lzma.compress("héllo".encode()))
        (tmp_path / "a.gz").write_bytes(gzip.compress("héllo".encode()))
        assert write_tokens([tmp_path / "a.xz", tmp_path / "a.gz"], tokenizer, 400, tmp_path / "t") == 12

    @given(st.text(alphabet="ab \n\r\t.'", max_size=200))
    @settings(max_examples=300)
    def test_a_cut_at_a_token_boundary_changes_no_token(self, text):
        cut = data.last_token_boundary(text)
        encode = gpt2_encoding().encode_ordinary
        assert encode(text[:cut]) + encode(text[cut:]) == encode(text)

    def test_text_is_encoded_in_pieces_as_if_whole(self, tokenizer, tmp_path, monkeypatch):
        text = "A line of words.\n\n  Another, longer one\n" * 50
        whole, _ = self.write(tokenizer, tmp_path, text)
        monkeypatch.setattr(data, "CHUNK_CHARACTERS", 64)
        pieces, n_bytes = self.write(tokenizer, tmp_path, text)
        assert pieces == whole
        assert n_bytes == len(text.rstrip())

    def test_an_empty_text_gives_no_tokens(self, tokenizer, tmp_path):
        assert self.write(tokenizer, tmp_path, "") == ([], 0)

    def test_files_that_are_not_text_are_refused(self, tokenizer, tmp_path):
        (tmp_path / "b.xz").write_bytes(b"no xz")
        (tmp_path / "b.gz").write_bytes(b"no gzip")
        (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a b c d e f g h" * 99)[:-9])
        for name in ("b.xz", "b.gz", "cut.gz", "none.txt", "."):
            with pytest.raises(UsageError, match="--validation"):
                write_tokens([tmp_path / name], tokenizer, 400, tmp_path / "t", option="--validation")

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
    def test_a_byte_order_mark_names_the_encoding_and_is_no_text(self, tokenizer, tmp_path, encoding):
        text, notes = "Das Märchen\n<|endoftext|>\nvom König\n", []
        expected, n_bytes = self.write(tokenizer, tmp_path, text)
        (tmp_path / "marked").write_bytes(text.encode(encoding))
        found = write_tokens([tmp_path / "marked"], tokenizer, 400, tmp_path / "t", note=notes.append)
        assert (map_tokens(tmp_path / "t", 400).tolist(), found, notes) == (expected, n_bytes, [])

    @pytest.mark.parametrize("data", [b"caf\xe9 noir", b"\xff\xfea\x00b\x00\x00\xd8"], ids=str)
    def test_other_bytes_are_replaced_with_a_note(self, tokenizer, tmp_path, data):
        (tmp_path / "latin").write_bytes(data)
        notes = []
        write_tokens([tmp_path / "latin"], tokenizer, 400, tmp_path / "t", note=notes.append)
        assert len(notes) == 1
        assert "latin: not all UTF-8; the other bytes are replaced by U+FFFD" in notes[0]

    def test_a_small_file_that_unpacks_to_anything_is_stopped_by_the_disk(
        self, tokenizer, tmp_path, monkeypatch
    ):
        (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"word \n" * 200_000))
        monkeypatch.setattr(data, "CHUNK_CHARACTERS", 1 << 16)
        free = iter([1 << 30, 1 << 29, 1000])
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=next(free)))
        with pytest.raises(
            ResourceError, match=r"bomb.gz: after [\d,]+ bytes of text the disk of .* has 1,000"
        ):
            write_tokens([tmp_path / "bomb.gz"], tokenizer, 400, tmp_path / "t")

    def test_bytes_without_an_end_or_a_space_are_no_text(self, tokenizer, tmp_path, monkeypatch):
        monkeypatch.setattr(data, "MAX_WORD_CHARACTERS", 1 << 20)
        with pytest.raises(UsageError, match=r"/dev/zero: not text: [0-9,]+ characters without a space"):
            write_tokens([Path("/dev/zero")], tokenizer, 400, tmp_path / "t")


class TestBatches:
    def test_every_epoch_covers_the_text_once_from_another_start(self):
        dataset = GPTDatasetV1(np.arange(1000), None, max_length=8, stride=2)
        batches = EndlessBatches(dataset, batch_size=5, seed=1)
        passes = []
        steps = iter(batches)
        for _ in range(4):
            windows = [i for _ in range(batches.batches_per_pass) for i in next(steps)]
            assert len(set(windows)) == len(windows) == 120
            assert len({i % 4 for i in windows}) == 1
            passes.append(windows)
        assert len({windows[0] % 4 for windows in passes}) == 4
        assert [sorted(windows) for windows in passes] != passes  # shuffled

    @pytest.mark.parametrize("start", [0, 1, 17, 24, 30])
    def test_a_resumed_run_gets_the_same_batches(self, start):
        dataset = GPTDatasetV1(np.arange(1000), None, max_length=8, stride=8)
        whole = list(islice(EndlessBatches(dataset, 5, seed=3), 60))
        assert list(islice(EndlessBatches(dataset, 5, seed=3, start=start), 60 - start)) == whole[start:]
        assert list(islice(EndlessBatches(dataset, 5, seed=4), 60)) != whole

    def test_too_little_text_is_refused_with_numbers(self):
        dataset = GPTDatasetV1(np.arange(30), None, max_length=8, stride=8)
        with pytest.raises(UsageError, match="3 windows of 8 tokens, and a batch is 4"):
            EndlessBatches(dataset, 4, seed=0)
