"""The contract between the decode loop and the engines, which compute logits. Arrays are NumPy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from gptcli.config.model_config import ModelConfig

Array = np.ndarray[Any, np.dtype[Any]]
# Which logits must be exact. `argmax`: the largest, and all that rounding could take for the largest;
# `argmax_logprob`: those, and the sum of all exponentials; `all`: every one.
Exactness = Literal["argmax", "argmax_logprob", "all"]


class Cache(Protocol):
    """The keys and values of several sequences, made by an engine and read only by that engine."""

    capacity: int
    lengths: list[int]

    @property
    def length(self) -> int:
        """Return the number of tokens of the longest sequence."""

    def truncate(self, length: int, row: int = 0) -> None:
        """Forget every token of one sequence from position `length` on."""

    def copy_from(self, other: Any) -> None:
        """Copy all sequences of a smaller cache of the same engine."""

    def clear(self) -> None:
        """Remove every sequence."""

    def remove(self, row: int) -> None:
        """Remove one sequence; the last one moves to its row."""


@dataclass(frozen=True)
class ForwardRequest:
    """The new tokens of one or more sequences, and which of their logits to compute."""

    ids: Sequence[Sequence[int]]  # per sequence, the tokens after those in the cache
    cache: Cache | None = None  # None: `ids` are whole sequences, and nothing is cached
    first_row: int = 0  # the cache's row of ids[0]; rows past the last one are new sequences
    n_logits: Sequence[int] | None = None  # per sequence, how many of the last tokens get logits; None: one
    exactness: Exactness = "all"
    tokens_left: int = 1  # tokens still to generate: an engine prepares nothing for a few


class Engine(Protocol):
    """Computes the logits of a model's next tokens."""

    @property
    def config(self) -> ModelConfig:
        """Return the config of the model."""

    @property
    def max_tokens(self) -> int:
        """Return how many tokens one forward pass verifies at about the cost of one; 0: none for now."""

    @property
    def near_tie_tolerance(self) -> float:
        """Return the difference of two logits that may be due to rounding, relative to their scale.

        0: there are no near ties, because the engine does not decide them.
        """

    def new_cache(self, n_sequences: int, capacity: int) -> Any:
        """Return an empty `Cache` with room for `capacity` tokens of each sequence.

        Raises `ResourceError` if it does not fit into memory.
        """

    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [N, V], sequence after sequence."""

    def exact_logits(self, ids: Sequence[int], cache: Any = None, row: int = 0) -> Array:
        """Return the logits [V] after `ids` in float64 arithmetic on the stored weights.

        `row` of the cache holds the sequence, or the beginning of it; without a cache all is computed.
        """

    def describe(self) -> str:
        """Return what computes the logits, in a few words for the user."""
