"""Keys and values for the native kernels: an array for each sequence, which comes and goes by itself."""

from __future__ import annotations

import numpy as np

from gptcli.config.model_config import ModelConfig
from gptcli.engine.native.arrays import Array


class Row:
    """One sequence: keys and values [L, 2, H, capacity, D], the first `length` positions filled."""

    def __init__(self, config: ModelConfig, capacity: int, dtype: type) -> None:
        shape = (config.n_layers, 2, config.n_heads, capacity, config.head_dim)
        self.data: Array = np.empty(shape, dtype)  # the system gives it memory where it is written
        self.length = 0
        self.exact: NativeCache | None = None  # the same sequence in float64, after its first near tie


class NativeCache:
    """The sequences of a batch, up to `capacity` tokens each, at most `context_length`."""

    def __init__(self, config: ModelConfig, capacity: int, dtype: type = np.float32) -> None:
        """Begin without a sequence; numbers are float32 or float64."""
        self._config, self.dtype = config, dtype
        self.capacity = min(capacity, config.context_length)
        self.rows: list[Row] = []
        self._free: list[Row] = []
        self.scratch = np.empty(0, np.uint8)  # of the passes that fill it; two threads share none

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of each sequence."""
        return [row.length for row in self.rows]

    @property
    def length(self) -> int:
        """Return the number of tokens of the longest sequence."""
        return max(self.lengths, default=0)

    def add(self) -> Row:
        """Add an empty sequence and return it."""
        row = self._free.pop() if self._free else Row(self._config, self.capacity, self.dtype)
        row.length, row.exact = 0, None
        self.rows.append(row)
        return row

    def truncate(self, length: int, row: int = 0) -> None:
        """Forget every token of a sequence from position `length` on."""
        held = self.rows[row]
        if not 0 <= length <= held.length:
            raise ValueError(f"cannot truncate a sequence of {held.length} tokens to {length}")
        held.length = length
        if held.exact is not None and held.exact.length > length:
            held.exact.truncate(length)

    def exact(self, row: int) -> NativeCache:
        """Return the float64 cache of a sequence, which holds what was computed at its last near tie."""
        held = self.rows[row]
        if held.exact is None:
            held.exact = NativeCache(self._config, self.capacity, np.float64)
            held.exact.add()
        return held.exact

    def copy_from(self, other: NativeCache) -> None:
        """Copy all sequences of a cache with a smaller capacity."""
        for old in other.rows:
            row = self.add()
            row.length, row.exact = old.length, old.exact
            row.data[:, :, :, : row.length] = old.data[:, :, :, : row.length]

    def clear(self) -> None:
        """Remove every sequence."""
        self._free += self.rows
        self.rows = []

    def remove(self, row: int) -> None:
        """Remove one sequence; the last one moves to its row."""
        last = self.rows.pop()
        if row < len(self.rows):
            last, self.rows[row] = self.rows[row], last
        self._free.append(last)
