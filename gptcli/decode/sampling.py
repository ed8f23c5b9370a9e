"""Samplers choose the next token from the logits: the largest, or a random one."""

import math
import random
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gptcli.decode.engine import Array
from gptcli.errors import UsageError, as_given


class Sampler(Protocol):
    """Chooses the tokens of one completion."""

    is_greedy: bool

    def sample(self, logits: Array) -> int:
        """Return the id of the next token, given logits [V], of which not all are -infinity."""


class GreedySampler:
    """Takes the token with the largest logit; of equal ones that with the lowest id."""

    is_greedy = True

    def sample(self, logits: Array) -> int:
        """Return the id of the largest logit of [V]."""
        return int(logits.argmax())


GREEDY = GreedySampler()


@dataclass(frozen=True)
class Sampling:
    """The distribution to sample from: logits over `temperature`, cut to `top_k`, `top_p` and `min_p`.

    `top_p` keeps the nucleus, `min_p` the tokens at least that many times as probable as the most probable
    one. Temperature 0 is greedy; `top_k` 0 or -1 is no limit. Raises `UsageError` for invalid values.
    Sources: top-k, Fan et al. 2018, "Hierarchical Neural Story Generation"; top-p, Holtzman et al. 2020, "The
    Curious Case of Neural Text Degeneration"; min-p, Nguyen et al. 2024, "Turning Up the Heat"; the order,
    transformers.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UsageError(
                f"--temperature {as_given(self.temperature)}: expected 0 (greedy) or a number above 0"
            )
        if self.top_k is not None and self.top_k < -1:
            raise UsageError(f"--top-k {self.top_k}: expected 1 or more, or 0 or -1 for no limit")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {as_given(self.top_p)}: expected a number above 0 and up to 1")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"--min-p {as_given(self.min_p)}: expected a number from 0 to 1")

    def sampler(self, seed: int, index: int) -> Sampler:
        """Return the sampler of sample `index`; a seed gives the same tokens on every device."""
        return GREEDY if self.temperature == 0 else RandomSampler(self, seed, index)

    def probabilities(self, logits: Array) -> Array:
        """Return the probabilities to sample from, float64 [V] with sum 1, for the logits [V].

        Some of the logits may be -infinity.
        """
        shifted = logits.astype(np.float64) - float(logits.max())  # [V], 0 at most
        with np.errstate(over="ignore"):  # by a tiny temperature all but the largest become -infinity
            scaled = shifted / self.temperature if self.temperature > 0 else shifted
        if self.top_k is not None and 0 < self.top_k < len(scaled):
            least = np.partition(scaled, -self.top_k)[-self.top_k]
            scaled[scaled < least] = -math.inf
        if self.top_p is not None:
            order = np.argsort(-scaled, kind="stable")  # [V], the most probable first
            ordered = _softmax(scaled[order])
            before = ordered.cumsum() - ordered  # the sum of those that are more probable
            scaled[order[before >= self.top_p]] = -math.inf  # the first one that reaches top_p stays
        if self.min_p > 0:
            scaled[np.exp(scaled) < self.min_p] = -math.inf  # the largest is 0, the most probable one
        return _softmax(scaled)


class RandomSampler:
    """Draws tokens from a distribution, by the inverse of its cumulative sums."""

    is_greedy = False

    def __init__(self, sampling: Sampling, seed: int, index: int) -> None:
        self._sampling = sampling
        self._random = random.Random(seed * 1_000_003 + index)

    def sample(self, logits: Array) -> int:
        """Return an id drawn from the distribution of the logits [V]; the same one on every machine."""
        cumulative = self._sampling.probabilities(logits).cumsum()  # [V], in the order of the ids
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        last = np.searchsorted(cumulative, cumulative[-1])  # where rounding reaches the end, too
        return int(min(drawn, last))


def _softmax(scaled: Array) -> Array:
    """Return the softmax of float64 [n], of which the largest is 0."""
    exponentials = np.exp(scaled)
    result: Array = exponentials / exponentials.sum()
    return result
