"""The tokenizer: the official vocabulary ships, and every id has its bytes or none."""

import base64
import hashlib

import pytest
import tiktoken_ext.openai_public as openai_public
from hypothesis import given
from hypothesis import strategies as st

from gptcli.errors import UsageError
from gptcli.tokenizer import Tokenizer, read_ranks
from tests.models import tiny_config


@pytest.fixture(scope="module")
def gpt2():
    return Tokenizer(tiny_config(vocab_size=50257))


def test_the_ranks_that_ship_rebuild_the_official_file(monkeypatch):
    text = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(read_ranks()))
    ours = hashlib.sha256(text).hexdigest()
    expected = {}

    def note_hash(url, expected_hash=None):
        expected[url.rpartition("/")[2]] = expected_hash
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", note_hash)
    openai_public.r50k_base()
    assert ours == expected["r50k_base.tiktoken"]
    assert ours == "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


def test_published_ids(gpt2):
    assert gpt2.encode("Hello, I am") == [15496, 11, 314, 716]
    assert gpt2.decode([27018, 24086, 47843, 30961, 42348, 7267]) == " Featureiman Byeswickattribute argue"


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text):
    gpt2 = Tokenizer(tiny_config(vocab_size=50257))
    ids = gpt2.encode(text, plain=True)
    assert gpt2.decode(ids) == text
    assert 50256 not in ids


def test_end_of_text_in_a_prompt_is_one_token_or_plain_text(gpt2):
    assert gpt2.encode("a<|endoftext|>b") == [64, 50256, 65]
    assert gpt2.encode("<|endoftext|>", plain=True) == [27, 91, 437, 1659, 5239, 91, 29]


def test_the_end_tokens_of_a_config_move_nothing_in_the_vocabulary():
    moved = Tokenizer(tiny_config(vocab_size=50304, eos_token_id=50300))
    assert moved.encode("a<|endoftext|>b") == [64, 50256, 65]
    assert moved.token_bytes(50256) == b"<|endoftext|>"
    assert moved.token_bytes(50300) is None


def test_an_id_beyond_the_vocabulary_has_no_text():
    padded = Tokenizer(tiny_config(vocab_size=50304))
    assert padded.token_bytes(50303) is None
    assert padded.decode([64, 50303, 65]) == "ab"


def test_a_prompt_that_the_model_has_no_ids_for_is_wrong_usage():
    small = Tokenizer(tiny_config(vocab_size=1000))
    assert small.encode("a!") == [64, 0]
    with pytest.raises(UsageError) as error:
        small.encode("Hello")
    assert "'Hello'" in str(error.value)
    assert "15496" in str(error.value)
    assert "vocab_size is 1000" in str(error.value)
    with pytest.raises(UsageError, match=r"endoftext.*50256"):
        small.encode("<|endoftext|>")


def test_long_runs_of_one_character_do_not_overflow(gpt2):
    for text in (" " * 200_000, "a" * 50_000, "\n" * 100_000):
        assert gpt2.decode(gpt2.encode(text)) == text
