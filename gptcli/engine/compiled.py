"""How the engine's kernels are compiled."""

from typing import Any

from numba import njit


def kernel(function: Any = None, **options: Any) -> Any:
    """`njit` with sums in any order, and the compiled code kept for the next process where that can be."""
    if function is None:
        return lambda function: kernel(function, **options)
    options |= {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "nogil": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for it: read-only installation and home
        return njit(**options)(function)
