"""Streaming text: whole characters and no part of a stop string, however tokens split the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptcli.decode.text_stream import TextStream


def streamed(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(stops)
    texts = [stream.feed(piece) for piece in pieces]
    return [*texts, stream.close()]


def cut(data: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(c for c in cuts if 0 < c < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.binary(), st.sets(st.integers(0, 40)))
def test_the_stream_equals_the_decoded_whole(data, cuts):
    assert "".join(streamed(cut(data, cuts))) == data.decode("utf-8", errors="replace")


@given(
    st.text(alphabet="ab\U0001f600", max_size=30),
    st.sets(st.integers(0, 60)),
    st.text("ab", min_size=1, max_size=4),
)
def test_text_ends_before_the_first_stop_wherever_tokens_end(text, cuts, stop):
    got = "".join(streamed(cut(text.encode(), cuts), (stop,)))
    assert got == text.partition(stop)[0]


def test_half_an_emoji_is_held_until_it_is_whole():
    smile = "\U0001f600".encode()
    assert streamed([b"a", smile[:2], smile[2:], b"b"]) == ["a", "", "\U0001f600", "b", ""]


def test_what_never_becomes_a_character_is_replaced_as_soon_as_that_is_certain():
    assert streamed([b"\xf0\x9f", b"x"]) == ["", "\ufffdx", ""]
    assert streamed([b"\xf0\x9f"]) == ["", "\ufffd"]


def test_text_is_held_back_only_as_long_as_it_may_be_a_stop():
    assert streamed([b"x\n", b"Q", b"x", b"\nQ:", b"y"], ("\nQ:",)) == ["x", "", "\nQx", "", "", ""]


@pytest.mark.parametrize("stops", [("b", "abc"), ("abc", "b")])
def test_of_several_stops_the_first_in_the_text_wins(stops):
    assert "".join(streamed([b"xxabc"], stops)) == "xx"
