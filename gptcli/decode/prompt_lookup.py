"""Prompt lookup: where text repeats itself, the draft is what followed the same tokens before.

Source: Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Sequence

NGRAM_SIZES = (3, 2)  # the last tokens that must have occurred before; the longer match wins


class PromptLookup:
    """An index of the n-grams of a growing text, each with its last occurrence."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._end_of: dict[tuple[int, ...], int] = {}

    def propose(self, ids: Sequence[int], n: int) -> list[int]:
        """Return up to `n` draft tokens after `ids`, possibly none; `ids` extend those of the last call."""
        self._index(ids[len(self._ids) :])
        for size in NGRAM_SIZES:
            start = self._end_of.get(tuple(self._ids[-size:]))
            if start is not None and len(self._ids) > size:
                draft: list[int] = []
                for at in range(start, start + n):  # may run into the draft itself, where the text loops
                    beyond = at - len(self._ids)
                    draft.append(draft[beyond] if beyond >= 0 else self._ids[at])
                return draft
        return []

    def _index(self, new_ids: Sequence[int]) -> None:
        for token in new_ids:
            for size in NGRAM_SIZES:
                if len(self._ids) >= size:
                    self._end_of[tuple(self._ids[-size:])] = len(self._ids)
            self._ids.append(token)
