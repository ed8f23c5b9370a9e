"""How many guesses to check at once: as many as pay, by how often they are right and what a step costs."""

from collections import Counter
from collections.abc import Sequence

from gptcli.decode.lookup import Lookup

# Before anything is measured: every second guess is right, and a token more adds a sixth to a step.
FIRST_RATE, FIRST_COST = 0.5, 1 / 6
# The weight of the newest observation in the running means.
RATE_STEP, COST_STEP = 0.1, 0.2


class Drafts:
    """Guesses for the tokens to come, never more than pay.

    A guess that is not checked costs nothing and still teaches: whether it would have been right is seen when
    the token comes. So text that does not repeat is decoded as without guesses.
    """

    def __init__(self, most: int | None = None, *, measures: bool = True) -> None:
        """At most `most` guesses at once; None leaves it to what pays, by what is measured or presumed."""
        self._most, self._measures = most, measures
        self._lookup = Lookup()
        self._rate = FIRST_RATE
        self._steps: Counter[int] = Counter()  # by their tokens
        self._seconds: dict[int, float] = {}
        self._guesses: list[int] = []

    def propose(self, ids: Sequence[int], most: int) -> list[int]:
        """What to check behind `ids`, at most `most`; maybe nothing."""
        self._guesses = self._lookup.propose(ids, max(1, most))
        most = min(most, len(self._guesses), most if self._most is None else self._most)
        return self._guesses[: self._paying(most)] if most > 0 else []

    def saw(self, tokens: Sequence[int]) -> None:
        """The tokens that came behind the last ids."""
        for guess, token in zip(self._guesses, tokens, strict=False):
            self._rate += RATE_STEP * ((guess == token) - self._rate)
            if guess != token:
                break

    def took(self, n_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long; the first of its kind, which is slower, does not count."""
        self._steps[n_tokens] += 1
        if self._steps[n_tokens] > 1 and self._measures:
            known = self._seconds.get(n_tokens, seconds)
            self._seconds[n_tokens] = known + COST_STEP * (seconds - known)

    def _paying(self, most: int) -> int:
        """The number of guesses that gives the most tokens a second."""
        best, best_value = 0, 1.0
        expected = right = 1.0
        for n in range(1, most + 1):
            right *= self._rate
            expected += right
            if expected / self._cost(1 + n) > best_value:
                best, best_value = n, expected / self._cost(1 + n)
        return best

    def _cost(self, n_tokens: int) -> float:
        """A step of so many tokens, in steps of one."""
        guess = 1 + FIRST_COST * (n_tokens - 1)
        one = self._seconds.get(1)
        return guess if one is None or n_tokens not in self._seconds else self._seconds[n_tokens] / one
