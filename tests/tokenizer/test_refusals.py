"""A tokenizer that is not read is refused with a line that names the file, and never replaced by another."""

import json
import re
from pathlib import Path

import pytest

from gptcli.errors import UsageError, WeightsError
from gptcli.weights.tokenizer_source import folder_tokenizer, named_tokenizer
from tests.tokenizer.made import gpt2_style, save_pair, save_whole

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"
FOLDERS = {
    "SentencePiece": (
        {"spiece.model": "\n\x0e"},
        r"spiece.model: a vocabulary of SentencePiece",
    ),
    "SentencePiece or tiktoken": ({"tokenizer.model": "x"}, r"AutoTokenizer"),
    "WordPiece": ({"vocab.txt": "[UNK]\n"}, r"vocab.txt: a vocabulary of WordPiece"),
    "not JSON": ({"tokenizer.json": "{"}, r"tokenizer.json: not a tokenizer's file .*; fetch it again"),
    "not UTF-8": ({"tokenizer.json": b"\xff\xff"}, r"tokenizer.json: not a tokenizer's file"),
    "empty": ({"tokenizer.json": ""}, r"tokenizer.json: not a tokenizer's file"),
    "no model": ({"tokenizer.json": "{}"}, r"tokenizer.json: .*it has no model"),
    "a list": ({"tokenizer.json": "[]"}, r"tokenizer.json: .*it has no model"),
    "an unknown model": (
        {"tokenizer.json": '{"model": {"type": "Magic"}}'},
        r"tokenizer.json: not a tokenizer's",
    ),
    "deep JSON": ({"tokenizer.json": "[" * 100_000}, r"tokenizer.json: not a tokenizer's file"),
    "a pointer": ({"tokenizer.json": LFS}, r"tokenizer.json: a Git LFS pointer.*git lfs pull"),
    "a pointer of a pair": ({"vocab.json": LFS, "merges.txt": "a b"}, r"vocab.json: a Git LFS pointer"),
    "no merges": ({"vocab.json": "{}"}, r"has vocab.json and no merges.txt"),
    "no vocabulary": ({"merges.txt": "a b"}, r"has merges.txt and no vocab.json"),
    "OpenAI's without merges": ({"encoder.json": "{}"}, r"has encoder.json and no vocab.bpe"),
    "a vocabulary that is a list": (
        {"vocab.json": "[]", "merges.txt": "a b"},
        r"vocab.json: not a tokenizer's",
    ),
    "ids that are text": ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, r"vocab.json: not a tokenizer's"),
    "merges of three": ({"vocab.json": '{"a": 0}', "merges.txt": "a b c"}, r"merges.txt: .*'a b c'"),
    "merges of no tokens": ({"vocab.json": '{"a": 0}', "merges.txt": "x y"}, r"not a tokenizer's file"),
    "settings alone": (
        {"added_tokens.json": '{"<|startoftext|>": 50257}'},
        r"name <\|start.*, and there is no",
    ),
    "another class alone": (
        {"tokenizer_config.json": '{"tokenizer_class": "LlamaTokenizer"}'},
        r"name a LlamaTokenizer, and there is no tokenizer.json",
    ),
    "settings that are a list": (
        {"special_tokens_map.json": "[]"},
        r"map.json: .*not a JSON object",
    ),
    "ids that are no ids": ({"added_tokens.json": '{"a": -1}'}, r"added_tokens.json: -1 is no id"),
}


@pytest.mark.parametrize(("files", "message"), FOLDERS.values(), ids=FOLDERS.keys())
def test_a_folder_that_is_not_read(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(WeightsError) as caught:
        folder_tokenizer(tmp_path)
    assert re.search(message, str(caught.value))
    assert len(str(caught.value).splitlines()) <= 2
    assert str(tmp_path) in str(caught.value)


def test_files_that_contradict_each_other(tmp_path):
    save_whole(gpt2_style(), tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|startoftext|>": 7}))
    with pytest.raises(WeightsError, match=r"gets id 0 here, and 7 in .*added_tokens.json"):
        folder_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "n": 1}')
    assert folder_tokenizer(tmp_path) is None


class TestNamed:
    def test_a_file_a_folder_and_each_file_of_a_pair(self, tmp_path):
        save_whole(gpt2_style(), tmp_path / "whole")
        save_pair(gpt2_style(), tmp_path / "pair")
        (tmp_path / "mine.json").write_bytes((tmp_path / "whole" / "tokenizer.json").read_bytes())
        names = ("whole", "whole/tokenizer.json", "pair", "pair/vocab.json", "pair/merges.txt", "mine.json")
        encodings = [named_tokenizer(tmp_path / name).encoding for name in names]
        ids = [tuple(each.encode("Once upon", plain=False, begins=True)) for each in encodings]
        assert len(set(ids)) == 1

    @pytest.mark.parametrize("name", ["none", "empty", "a.txt"])
    def test_what_is_none_is_wrong_usage(self, tmp_path, name):
        (tmp_path / "empty").mkdir()
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(UsageError, match=f"--tokenizer .*{name}"):
            named_tokenizer(tmp_path / name)

    def test_a_file_that_never_ends_is_not_read(self):
        for path in ("/dev/zero", "/dev/stdin"):
            with pytest.raises((UsageError, WeightsError), match=path):
                named_tokenizer(Path(path))
