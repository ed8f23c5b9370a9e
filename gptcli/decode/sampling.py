"""Samplers choose the next token from the logits: the largest, or a random one."""

import math
import random
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gptcli.decode.engine import Array
from gptcli.errors import UsageError


class Sampler(Protocol):
    """Chooses the tokens of one completion."""

    is_greedy: bool

    def sample(self, logits: Array) -> int:
        """Return the id of the next token, given finite float32 logits [V]."""


class GreedySampler:
    """Takes the token with the largest logit; of equal ones that with the lowest id."""

    is_greedy = True

    def sample(self, logits: Array) -> int:
        """Return the id of the largest logit of [V]."""
        return int(logits.argmax())


GREEDY = GreedySampler()


@dataclass(frozen=True)
class Sampling:
    """The distribution to sample from: logits over `temperature`, cut to `top_k` and to the nucleus `top_p`.

    Temperature 0 is greedy. Raises `UsageError` for invalid values. Sources: top-k, Fan et al. 2018,
    "Hierarchical Neural Story Generation"; top-p, Holtzman et al. 2020, "The Curious Case of Neural Text
    Degeneration".
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UsageError(f"--temperature {self.temperature:g}: expected 0 (greedy) or a number above 0")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k}: expected 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: expected a number above 0 and up to 1")

    def sampler(self, seed: int, index: int) -> Sampler:
        """Return the sampler of sample `index`; a seed gives the same tokens on every device."""
        return GREEDY if self.temperature == 0 else RandomSampler(self, seed, index)

    def probabilities(self, logits: Array) -> Array:
        """Return the probabilities to sample from, float64 [V] with sum 1, for the float32 logits [V]."""
        shifted = logits.astype(np.float64) - float(logits.max())  # [V], 0 at most
        with np.errstate(over="ignore"):  # by a tiny temperature all but the largest become -infinity
            scaled = shifted / self.temperature if self.temperature > 0 else shifted
        if self.top_k is not None and self.top_k < len(scaled):
            least = np.partition(scaled, -self.top_k)[-self.top_k]
            scaled[scaled < least] = -math.inf
        if self.top_p is not None:
            order = np.argsort(-scaled, kind="stable")  # [V], the most probable first
            ordered = _softmax(scaled[order])
            before = ordered.cumsum() - ordered  # the sum of those that are more probable
            scaled[order[before >= self.top_p]] = -math.inf  # the first one that reaches top_p stays
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
