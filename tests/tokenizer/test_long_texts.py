"""Texts of any length and kind are encoded, or refused with a line; GPT-2's in pieces, as if whole."""

import io
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from gptcli.cli import bounded
from gptcli.cli.bounded import bounded_lines, read_bounded
from gptcli.decode import text_chunks
from gptcli.decode.text_chunks import encode_chunks
from gptcli.errors import ResourceError, UsageError
from gptcli.tokenizer import END_OF_TEXT, Tokenizer, gpt2, limits
from gptcli.tokenizer.file_encoding import FileEncoding
from gptcli.tokenizer.gpt2 import GPT2Encoding, gpt2_encoding
from tests.models import tiny_config
from tests.tokenizer.made import gpt2_library, gpt2_style, llama2_style

SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u3000"


class Panic(BaseException):
    """What pyo3 raises for a panic in Rust."""


Panic.__name__ = "PanicException"


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [("", " ", "x"), ("", " \n", "é"), ("a\n", "\r\n", " b"), ("'s", "\u3000", END_OF_TEXT)],
    ids=ascii,
)
def test_a_million_spaces_have_the_ids_of_the_pattern(before, unit, after):
    text = before + unit * (1_000_000 // len(unit)) + after
    with pytest.raises(ValueError, match="Max stack size"):  # tiktoken's own
        gpt2_encoding().encode_to_numpy(text, disallowed_special=())
    found = GPT2Encoding().encode(text, plain=False, begins=True)
    assert found == gpt2_library().encode(text).ids


@given(st.text(st.sampled_from(SPACES + "ab\x1c'1!é"), max_size=40), st.booleans())
@settings(max_examples=300, deadline=None)
def test_white_space_apart_gives_the_same_ids(text, plain):
    encoding = GPT2Encoding()
    patched = pytest.MonkeyPatch()
    patched.setattr(gpt2, "LONG_RUN", 2)
    try:
        found = [i for part in gpt2._split_special(text, plain) for i in encoding._encode_white_space(part)]
    finally:
        patched.undo()
    assert found == gpt2_encoding().encode_ordinary(text)


@given(st.text(st.sampled_from(SPACES + "ab\x1c'1!é"), max_size=60))
@settings(max_examples=200, deadline=None)
def test_gpt2s_chunks_give_the_ids_of_the_whole(text):
    patched = pytest.MonkeyPatch()
    patched.setattr(gpt2, "CHUNK_CHARACTERS", 3)
    patched.setattr(gpt2, "require_memory_for", lambda *_: None)
    try:
        assert GPT2Encoding().encode(text, plain=True, begins=True) == gpt2_encoding().encode_ordinary(text)
    finally:
        patched.undo()


def test_memory_is_checked_before_rust_ends_the_process(monkeypatch):
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 26)
    for encoding in (GPT2Encoding(), FileEncoding(gpt2_style(), "other")):
        with pytest.raises(ResourceError, match="not enough memory: the tokens of a text of 2,000,000 bytes"):
            encoding.encode("x" * 2_000_000, plain=False, begins=True)
        assert encoding.encode("x y", plain=False, begins=True)


@pytest.mark.parametrize("error", [Panic("memory\nat line 7"), ValueError("no unknown token")], ids=repr)
def test_an_error_of_a_library_is_one_line_of_ours(monkeypatch, error):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(tiktoken.Encoding, "encode_to_numpy", fail)
    monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", fail)
    kind = ResourceError if isinstance(error, Panic) else UsageError
    with pytest.raises(kind, match=r"the library tiktoken .*\((memory|no unknown token)\)"):
        GPT2Encoding().encode("x", plain=False, begins=True)


def test_an_interrupt_is_no_error_of_a_library():
    with pytest.raises(KeyboardInterrupt), limits.library_call("tiktoken"):
        raise KeyboardInterrupt


class TestChunksOfOtherTokenizers:
    TEXT = "Once upon a time\n there was  a king,\n\n naïve. " * 20

    @pytest.mark.parametrize("make", [gpt2_style, llama2_style])
    def test_all_ids_are_those_of_the_whole(self, make, monkeypatch):
        monkeypatch.setattr(text_chunks, "MIN_CHARACTERS", 50)
        library = make()
        tokenizer = Tokenizer(tiny_config(vocab_size=1000), FileEncoding(library, "other"))
        pieces = [self.TEXT[at : at + 30] for at in range(0, len(self.TEXT), 30)]
        chunks = list(encode_chunks(pieces, tokenizer))
        assert [i for _, ids in chunks for i in ids] == library.encode(self.TEXT).ids
        assert (len(chunks) > 5) == tokenizer.cuts_before_spaces

    def test_a_text_without_an_end_is_refused(self, monkeypatch):
        monkeypatch.setattr(text_chunks, "MAX_CHARACTERS", 1000)
        tokenizer = Tokenizer(tiny_config(vocab_size=50257))
        with pytest.raises(UsageError, match=r"1,\d\d\d characters of the text"):
            list(encode_chunks(iter(lambda: "\0" * 100, ""), tokenizer))


class TestPromptsWithoutEnd:
    @pytest.fixture(autouse=True)
    def limit(self, monkeypatch):
        monkeypatch.setattr(bounded, "MAX_PROMPT_BYTES", 10)
        monkeypatch.setattr(bounded, "MAX_SKIPPED_BYTES", 40)

    def test_a_file(self):
        assert read_bounded(io.BytesIO(b"0123456789"), "stdin") == b"0123456789"
        with Path("/dev/zero").open("rb") as zeros, pytest.raises(UsageError, match="stdin: more than"):
            read_bounded(zeros, "stdin")

    def test_lines(self):
        file = io.BytesIO(b"short\n" + b"0" * 35 + b"\n" + b"012345678\n" + b"1" * 10 + b"\nlast")
        assert list(bounded_lines(file, Path("f"))) == [b"short\n", None, b"012345678\n", None, b"last"]

    def test_a_line_without_end(self):
        with (
            Path("/dev/zero").open("rb") as zeros,
            pytest.raises(UsageError, match="--input /dev/zero: line 1"),
        ):
            list(bounded_lines(zeros, Path("/dev/zero")))
