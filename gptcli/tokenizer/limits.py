"""The limits of the tokenizer libraries: memory, and panics of Rust."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptcli.errors import ResourceError
from gptcli.system.memory import available_bytes, require_memory


def require_memory_for(text: str, bytes_per_byte: int) -> None:
    """Raise `ResourceError` unless a text can be encoded: without memory Rust ends the process."""
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    what = f"the tokens of a text of {n_bytes:,} bytes"
    require_memory(n_bytes * bytes_per_byte, available_bytes(), what, "a shorter text")


@contextmanager
def library_call(library: str) -> Iterator[None]:
    """Raise `ResourceError` for a panic of a Rust library, which is a `BaseException` and no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0][:200]
        raise ResourceError(
            f"the library {library} failed ({reason}), as it does without memory; give a shorter text"
        ) from None
