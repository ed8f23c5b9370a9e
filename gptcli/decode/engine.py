"""The contract between the decode loop and what computes logits. At this edge arrays are NumPy's."""

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
    """The keys and values of several sequences; made by an engine, and read by that engine alone."""

    capacity: int
    lengths: list[int]

    @property
    def length(self) -> int:
        """Tokens held of the longest sequence."""

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on, in every sequence."""

    def copy_from(self, other: Any) -> None:
        """Take over all sequences of a smaller cache of the same engine."""

    def clear(self) -> None:
        """Remove every sequence."""

    def remove(self, row: int) -> None:
        """Remove one sequence; the last one moves to its row."""


@dataclass(frozen=True)
class ForwardRequest:
    """New tokens of one or several sequences, and which of their logits are wanted."""

    ids: Sequence[Sequence[int]]  # of each sequence, after what the cache holds of it
    cache: Cache | None = None  # None: `ids` are the whole sequences, and nothing is kept
    first_row: int = 0  # the sequence of ids[0]; rows from the end of the cache on are new sequences
    n_logits: int = 1  # logits are wanted of so many last tokens of each sequence
    exactness: Exactness = "all"
    tokens_left: int = 1  # tokens that are still wanted: preparing something for a few would not pay


class Engine(Protocol):
    """Computes the logits of a model's next tokens."""

    @property
    def config(self) -> ModelConfig:
        """The model's."""

    @property
    def max_tokens(self) -> int:
        """Tokens that one pass verifies at little more than the cost of one; 0: none for now."""

    @property
    def near_tie_tolerance(self) -> float:
        """Two logits this close, relative to the largest magnitude, may be in the wrong order by rounding.

        0 where the order counts as it is.
        """

    def new_cache(self, n_sequences: int, capacity: int) -> Any:
        """Return an empty `Cache` with room for `capacity` tokens of each sequence.

        Raises `ResourceError` where memory does not hold it.
        """

    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [B, n_logits, V]."""

    def describe(self) -> str:
        """Return what computes, in a few words for people."""
