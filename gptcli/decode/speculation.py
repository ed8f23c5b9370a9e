"""How many guesses to check at once: as many as pay, by how often they are right and what steps cost."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gptcli.decode.prompt_lookup import Lookup
from gptcli.model.cache import KVCache

# Before anything is measured: every second guess from the text is right, nine of ten of the drafter's; a
# token more adds a twelfth to a step, and one of the drafter's takes a third of a step.
FIRST_RATE, FIRST_DRAFTER_RATE, FIRST_COST, FIRST_DRAFTER_COST = 0.5, 0.9, 1 / 12, 1 / 3
# The weight of the newest observation in the running mean of what is right. Of what a step takes the least
# counts, raised a little with each, so that a reader who keeps us waiting once does not.
RATE_STEP, COST_DRIFT = 0.1, 1.03


class Drafter(Protocol):
    """A model that is cheaper than the one whose tokens it guesses."""

    def can_guess(self, tokens_left: int) -> bool:
        """Whether it is there; if not, it may get ready where so many tokens are worth it."""

    def guess(self, token: int, cache: KVCache, n: int) -> list[int]:
        """The n tokens behind `token`, which follows what the cache holds; the cache is left as it was."""


class _Kind(NamedTuple):
    """A step: its tokens, and whether the drafter has guessed all but the first."""

    n_tokens: int
    is_drafted: bool


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
        self._steps: Counter[_Kind] = Counter()
        self._seconds: dict[_Kind, float] = {}
        self._running: tuple[_Kind, float] | None = None
        self._looked_up: list[int] = []
        self._drafted: list[int] = []
        self._began = 0.0

    def propose(self, ids: Sequence[int], most: int, cache: KVCache, tokens_left: int) -> list[int]:
        """What to check behind `ids`, at most `most`; maybe nothing. So many tokens are wanted in all."""
        self._measure()
        self._began = time.perf_counter()
        self._looked_up = self._lookup.propose(ids, max(1, most)) if self._lookup else []
        self._drafted = []
        most = most if self._most is None else min(most, self._most)
        n, value = self._paying(min(most, len(self._looked_up)), self._rate, is_drafted=False)
        drafter = self._drafter
        if drafter is not None and len(ids) == cache.length + 1 and drafter.can_guess(tokens_left):
            n_drafted, drafted_value = self._paying(most, self._drafter_rate, is_drafted=True)
            if drafted_value > value:
                self._drafted = drafter.guess(ids[-1], cache, n_drafted)
                return self._drafted
        return self._looked_up[:n]

    def saw(self, tokens: Sequence[int]) -> None:
        """The tokens that came behind the last ids."""
        self._rate = _learned(self._rate, self._looked_up, tokens)
        self._drafter_rate = _learned(self._drafter_rate, self._drafted, tokens)

    def ran(self, n_tokens: int) -> None:
        """A step of so many tokens has run; with the guesses before it and all behind it, it is measured."""
        self._running = (_Kind(n_tokens, bool(self._drafted)), self._began)

    def _measure(self) -> None:
        """Note what the last step took, until now; the first of its kind, which is slower, does not count."""
        if self._running is None or not self._measures:
            return
        (kind, began), self._running = self._running, None
        self._steps[kind] += 1
        if self._steps[kind] > 1:
            seconds = time.perf_counter() - began
            self._seconds[kind] = min(seconds, self._seconds.get(kind, seconds) * COST_DRIFT)

    def _paying(self, most: int, rate: float, *, is_drafted: bool) -> tuple[int, float]:
        """The number of guesses that gives the most tokens a second, and how many times as many as none."""
        best, best_value = 0, 1.0
        expected = right = 1.0
        for n in range(1, most + 1):
            right *= rate
            expected += right
            value = expected / self._cost(_Kind(1 + n, is_drafted))
            if value > best_value:
                best, best_value = n, value
        return best, best_value

    def _cost(self, kind: _Kind) -> float:
        """A step of a kind, in steps of one token."""
        one, known = self._seconds.get(_Kind(1, False)), self._seconds.get(kind)
        if one is not None and known is not None:
            return known / one
        return 1 + (kind.n_tokens - 1) * (FIRST_COST + FIRST_DRAFTER_COST * kind.is_drafted)


def _learned(rate: float, guesses: Sequence[int], tokens: Sequence[int]) -> float:
    """The rate of right guesses, with what these have shown up to the first wrong one."""
    for guess, token in zip(guesses, tokens, strict=False):
        rate += RATE_STEP * ((guess == token) - rate)
        if guess != token:
            break
    return rate
