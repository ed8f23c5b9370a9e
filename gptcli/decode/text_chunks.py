"""Long texts in chunks that can be encoded one after another."""

from collections.abc import Iterable, Iterator

from gptcli.errors import UsageError
from gptcli.tokenizer import Tokenizer

# A chunk has at least so many characters; without a place to cut in the most, a text may never end.
MIN_CHARACTERS, MAX_CHARACTERS = 1 << 20, 1 << 26


def encode_chunks(pieces: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Yield a text that comes in pieces in chunks of a megabyte or more, each with its ids.

    All ids together are those of the whole text, which is one chunk if its tokenizer looks across words.
    Raises `UsageError` for tokens that the model lacks, and for a chunk that would be too long.
    """
    held, begins = "", True
    for piece in pieces:
        held += piece
        if len(held) > MAX_CHARACTERS:
            raise UsageError(
                f"{len(held):,} characters of the text have to be encoded at once, and {MAX_CHARACTERS:,} can"
                " be; give it in several files"
            )
        if len(held) < MIN_CHARACTERS or not tokenizer.cuts_before_spaces:
            continue
        # What was held before has no boundary but its beginning.
        if cut := last_token_boundary(held, len(held) - len(piece)):
            yield held[:cut], tokenizer.encode(held[:cut], begins=begins)
            held, begins = held[cut:], False
    if held:
        yield held, tokenizer.encode(held, begins=begins)


def last_token_boundary(text: str, start: int = 0) -> int:
    """Return the last index from `start` on that no byte-pair token spans, or 0 if there is none.

    It is before a space or line break that follows a visible character, where GPT-2's pattern cuts.
    """
    for at in range(len(text) - 1, max(start, 1) - 1, -1):
        if text[at] in " \n" and not text[at - 1].isspace():
            return at
    return 0
