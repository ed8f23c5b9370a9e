"""How many guesses to check at once: as many as pay, by how often they are right and what steps cost."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from gptcli.decode.lookup import Lookup
from gptcli.model.cache import KVCache

# Before anything is measured: every second guess from the text is right, nine of ten of the drafter's; a
# token more adds a sixth to a step, and one of the drafter's takes half a step.
FIRST_RATE, FIRST_DRAFTER_RATE, FIRST_COST, FIRST_DRAFTER_COST = 0.5, 0.9, 1 / 6, 0.5
# The weight of the newest observation in the running means.
RATE_STEP, COST_STEP = 0.1, 0.2


class Drafter(Protocol):
    """A model that is cheaper than the one whose tokens it guesses."""

    def can_guess(self, tokens_left: int) -> bool:
        """Whether it is there; if not, it may get ready where so many tokens are worth it."""

    def guess(self, token: int, cache: KVCache, n: int) -> list[int]:
        """The n tokens behind `token`, which follows what the cache holds; the cache is left as it was."""


class Drafts:
    """Guesses for the tokens to come, never more than pay: from the text so far, and of a drafter if given.

    A guess from the text that is not checked costs nothing and still teaches: whether it would have been
    right is seen when the token comes. So text that does not repeat is decoded as without guesses.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        measures: bool = True,
        lookup: bool = True,
        drafter: Drafter | None = None,
    ) -> None:
        """At most `most` guesses at once; None leaves it to what pays, by what is measured or presumed."""
        self._most, self._measures = most, measures
        self._lookup = Lookup() if lookup else None
        self._drafter = drafter
        self._rate, self._drafter_rate = FIRST_RATE, FIRST_DRAFTER_RATE
        self._steps: Counter[int] = Counter()  # by their tokens; 0 stands for one of the drafter's
        self._seconds: dict[int, float] = {}
        self._looked_up: list[int] = []
        self._drafted: list[int] = []

    def propose(self, ids: Sequence[int], most: int, cache: KVCache, tokens_left: int) -> list[int]:
        """What to check behind `ids`, at most `most`; maybe nothing. So many tokens are wanted in all."""
        self._looked_up = self._lookup.propose(ids, max(1, most)) if self._lookup else []
        self._drafted = []
        most = most if self._most is None else min(most, self._most)
        n, value = self._paying(min(most, len(self._looked_up)), self._rate, 0.0)
        drafter = self._drafter
        if drafter is not None and len(ids) == cache.length + 1 and drafter.can_guess(tokens_left):
            n_drafted, drafted_value = self._paying(most, self._drafter_rate, self._cost_of_drafting())
            if drafted_value > value:
                began = time.perf_counter()
                self._drafted = drafter.guess(ids[-1], cache, n_drafted)
                self.took(0, (time.perf_counter() - began) / n_drafted)
                return self._drafted
        return self._looked_up[:n]

    def saw(self, tokens: Sequence[int]) -> None:
        """The tokens that came behind the last ids."""
        self._rate = _learned(self._rate, self._looked_up, tokens)
        self._drafter_rate = _learned(self._drafter_rate, self._drafted, tokens)

    def took(self, n_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long; the first of its kind, which is slower, does not count."""
        self._steps[n_tokens] += 1
        if self._steps[n_tokens] > 1 and self._measures:
            known = self._seconds.get(n_tokens, seconds)
            self._seconds[n_tokens] = known + COST_STEP * (seconds - known)

    def _paying(self, most: int, rate: float, cost_of_guess: float) -> tuple[int, float]:
        """The number of guesses that gives the most tokens a second, and how many times as many as none."""
        best, best_value = 0, 1.0
        expected = right = 1.0
        for n in range(1, most + 1):
            right *= rate
            expected += right
            value = expected / (n * cost_of_guess + self._cost(1 + n))
            if value > best_value:
                best, best_value = n, value
        return best, best_value

    def _cost(self, n_tokens: int) -> float:
        """A step of so many tokens, in steps of one."""
        guess = 1 + FIRST_COST * (n_tokens - 1)
        one = self._seconds.get(1)
        return guess if one is None or n_tokens not in self._seconds else self._seconds[n_tokens] / one

    def _cost_of_drafting(self) -> float:
        one = self._seconds.get(1)
        return FIRST_DRAFTER_COST if one is None or 0 not in self._seconds else self._seconds[0] / one


def _learned(rate: float, guesses: Sequence[int], tokens: Sequence[int]) -> float:
    """The rate of right guesses, with what these have shown up to the first wrong one."""
    for guess, token in zip(guesses, tokens, strict=False):
        rate += RATE_STEP * ((guess == token) - rate)
        if guess != token:
            break
    return rate
