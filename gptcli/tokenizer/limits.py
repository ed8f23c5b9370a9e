"""The limits of the tokenizer libraries: memory, and panics of Rust."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gptcli.errors import ResourceError, UsageError
from gptcli.system.memory import available_bytes, require_memory


def require_memory_for(text: str, bytes_per_byte: int) -> None:
    """Raise `ResourceError` unless a text can be encoded: without memory Rust ends the process."""
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    what = f"the tokens of a text of {n_bytes:,} bytes"
    require_memory(n_bytes * bytes_per_byte, available_bytes(), what, "a shorter text")


@contextmanager
def without_panic_messages() -> Iterator[None]:
    """Hide what Rust writes to stderr when it panics, lines that no Python handler sees."""
    held, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(held, 2)
        os.close(held)
        os.close(nowhere)


@contextmanager
def library_call(library: str) -> Iterator[None]:
    """Raise errors of ours for those of a Rust library.

    Its panic, which is a `BaseException` and no `Exception`, becomes a `ResourceError`; what it says about a
    text becomes a `UsageError`.
    """
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        reason = str(error).partition("\n")[0][:200]
        if isinstance(error, Exception):
            raise UsageError(f"the library {library} cannot take this text ({reason})") from None
        if type(error).__name__ != "PanicException":
            raise
        raise ResourceError(
            f"the library {library} failed ({reason}), as it does without memory; give a shorter text"
        ) from None
