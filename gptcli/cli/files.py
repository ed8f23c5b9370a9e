"""Output files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gptcli.errors import ResourceError, UsageError
from gptcli.plots.figure import FORMATS


def check_writable(path: Path | None) -> None:
    """Raise `ResourceError` before the work begins if the output cannot be written after it."""
    if path is None:
        return
    if path.is_dir():
        raise ResourceError(f"--output {path}: is a folder; give a file name")
    if path.is_symlink() and not path.exists():
        raise ResourceError(f"--output {path}: is a link to nothing, or to itself")
    folder = path.parent
    if not folder.is_dir():
        raise ResourceError(f"--output {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ResourceError(f"--output {path}: no permission to write there")


def picture_format(path: Path | None) -> str | None:
    """Return the format of a picture by the ending of its name; None without a file.

    Raises `UsageError` for any other ending.
    """
    if path is None:
        return None
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise UsageError(f"--output {path}: expected a name ending in .png, .svg or .pdf")
    return ending


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file next to `path`, then rename it to `path`.

    Raises `ResourceError` if that fails, and leaves what was there as it was.
    """
    try:
        with _temporary_file(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise ResourceError(f"--output {path}: {error.strerror}") from None


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it replaces `path` when the block ends without an error."""
    if path.exists() and not path.is_file():
        yield path  # a device or a pipe cannot be replaced
        return
    path = path.resolve()  # replace the file that a link points to, not the link
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    temporary = Path(name)
    try:
        os.fchmod(descriptor, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.close(descriptor)
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
