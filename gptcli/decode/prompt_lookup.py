"""Prompt lookup: text repeats itself; what followed the last few tokens before is a guess at what follows.

Source: Saxena 2023, "Prompt Lookup Decoding"; the check of a guess is that of Leviathan et al. 2023, "Fast
Inference from Transformers via Speculative Decoding", for the most probable token alone.
"""

from collections.abc import Sequence

SIZES = (3, 2)  # tokens that must have stood there before; the longer match counts


class Lookup:
    """Every run of a few tokens of a growing text, and where it stood last."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def propose(self, ids: Sequence[int], n: int) -> list[int]:
        """Up to `n` guesses at what follows `ids`, which begin with the ids of the last call; maybe none."""
        self._take_in(ids[len(self._ids) :])
        for size in SIZES:
            start = self._after.get(tuple(self._ids[-size:]))
            if start is not None and len(self._ids) > size:
                guesses: list[int] = []
                for at in range(start, start + n):  # on through its own guesses, where the text loops
                    beyond = at - len(self._ids)
                    guesses.append(guesses[beyond] if beyond >= 0 else self._ids[at])
                return guesses
        return []

    def _take_in(self, more: Sequence[int]) -> None:
        for token in more:
            for size in SIZES:
                if len(self._ids) >= size:
                    self._after[tuple(self._ids[-size:])] = len(self._ids)
            self._ids.append(token)
