"""A model's numbers as NumPy arrays: their dtypes, and work on them piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gptcli.config.dtypes import DTYPES

if TYPE_CHECKING:  # its import takes 12 ms
    from concurrent.futures import ThreadPoolExecutor

Array = np.ndarray[Any, np.dtype[Any]]
PIECE = 1 << 18  # numbers of a piece: 1 MB as float32, which stays in a core's cache


def pieces(array: Array) -> list[slice]:
    """Return slices of the first axis with at most `PIECE` numbers each, or one row."""
    n_rows = len(array)
    step = max(1, PIECE * n_rows // max(1, array.size))
    return [slice(first, first + step) for first in range(0, n_rows, step)]


class PieceRunner:
    """Calls a function with every piece of an array. A context manager, if it has threads."""

    def __init__(self, n_threads: int = 1, done: Callable[[Array], object] | None = None) -> None:
        """`done` is called with each piece in the last pass over its array."""
        self._n_threads, self._done = n_threads, done

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(self._n_threads)

    def __call__(self, array: Array, run: Callable[[slice], None], *, is_last: bool = True) -> None:
        """Call a function with every piece; in threads NumPy releases the interpreter's lock."""

        def work(piece: slice) -> None:
            run(piece)
            if is_last and self._done is not None:
                self._done(array[piece])

        parts = pieces(array)
        in_threads = self._n_threads > 1 and len(parts) > 1
        for _ in self._pool.map(work, parts) if in_threads else map(work, parts):
            pass  # it raises what a thread has raised

    def __enter__(self) -> PieceRunner:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads."""
        if "_pool" in self.__dict__:
            self._pool.shutdown()


SERIAL = PieceRunner()


def is_by_columns(array: Array) -> bool:
    """Return whether a matrix lies column after column: the transpose of one that lies by rows."""
    return array.ndim == 2 and array.strides[0] < array.strides[1]


def as_floats(array: Array) -> Array:
    """Return floats of at least the same precision: bfloat16 (uint16) as float32, all others as they are."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


def widen(array: Array) -> Array:
    """Return float32 numbers for float32, float16 or bfloat16 (uint16) numbers."""
    return np.asarray(as_floats(array), np.float32)


def convert(array: Array, dtype: str, each: PieceRunner = SERIAL) -> Array:
    """Return the numbers in another dtype, rounded to nearest, ties to even; themselves if it is theirs.

    bfloat16 numbers are uint16. The result lies as the array does, by rows or by columns.
    """
    wanted = np.dtype(np.uint16 if dtype == "bfloat16" else DTYPES[dtype].numpy)
    if array.dtype == wanted:
        return array
    converted = np.empty_like(array, wanted)
    stored, results = np.atleast_1d(array), np.atleast_1d(converted)  # views
    if is_by_columns(stored):  # read it in the order of the memory
        stored, results = stored.T, results.T
    narrow = _to_bfloat16 if dtype == "bfloat16" else as_floats

    def run(piece: slice) -> None:
        with np.errstate(over="ignore"):  # what is too large is infinite
            results[piece] = narrow(stored[piece])

    each(stored, run)
    return converted


def _to_bfloat16(numbers: Array) -> Array:
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1  # a tie goes to the even one
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    narrow: Array = rounded.astype(np.uint16)
    narrow[np.isnan(numbers)] = 0x7FC0
    return narrow
