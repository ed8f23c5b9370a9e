"""How the engine's kernels are compiled, and how long compiled code is good for."""

from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

FOLDER = Path(__file__).parent
SOURCES = ("attention", "compiled", "kernels", "numbers", "products", "tile")


def inner(function: Any = None, **options: Any) -> Any:
    """A `kernel` that only other kernels call: compiled sooner, without what Python would call it by."""
    return kernel(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def kernel(function: Any = None, **options: Any) -> Any:
    """`njit` with sums in any order, and the compiled code kept for the next process where that can be."""
    if function is None:
        return lambda function: kernel(function, **options)
    options |= {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "nogil": True}
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for it: read-only installation and home
        return njit(**options)(function)
    # Numba looks whether the file has changed that a function stands in. But the functions that it calls are
    # compiled into it, and they stand in other files: so that all of them count. There is no public way.
    kept: Any = getattr(compiled._cache, "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = source_stamp()
    return compiled


@cache
def source_stamp() -> tuple[tuple[str, float, int], ...]:
    """Name, time and size of every file that has kernels; of none where there are no files."""
    paths = [path for name in SOURCES if (path := FOLDER / f"{name}.py").is_file()]
    return tuple((path.name, path.stat().st_mtime, path.stat().st_size) for path in paths)
