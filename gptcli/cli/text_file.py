"""A text file, or stdin, read piece by piece or line by line, decoded from any bytes."""

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gptcli.errors import ResourceError, UsageError

PIECE_BYTES = 1 << 20


@dataclass
class TextFile:
    """A text that is read once; `n_bytes` is its size if that is known.

    A byte order mark is dropped; bytes that are not UTF-8 are replaced.
    """

    option: str
    path: Path
    n_bytes: int | None
    file: IO[bytes]
    is_replaced: bool = field(default=False, init=False)

    @classmethod
    @contextmanager
    def open(cls, option: str, path: Path) -> Iterator["TextFile"]:
        """Open the file that an option names, or stdin for `-`; raises `UsageError` if that is impossible."""
        if str(path) == "-":
            if sys.stdin is None:
                raise UsageError(f"{option} -: stdin is closed")
            yield cls(option, path, None, sys.stdin.buffer)
            return
        if path.is_dir():
            raise UsageError(f"{option} {path}: is a folder; give a text file")
        try:
            file = path.open("rb")
        except OSError as error:
            raise UsageError(f"{option} {path}: {error.strerror}") from None
        with file:
            yield cls(option, path, path.stat().st_size if path.is_file() else None, file)

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of about a megabyte."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        try:
            while data := self.file.read(PIECE_BYTES):
                yield self._replaced(decoder.decode(data))
        except OSError as error:
            raise ResourceError(f"{self.option} {self.path}: {error.strerror}") from None
        yield self._replaced(decoder.decode(b"", final=True))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text, each as soon as it is there, without its line break."""
        try:
            for number, line in enumerate(self.file):
                data = line.removesuffix(b"\n").removesuffix(b"\r")
                encoding = "utf-8" if number else "utf-8-sig"
                yield self._replaced(data.decode(encoding, "surrogateescape"))
        except OSError as error:
            raise ResourceError(f"{self.option} {self.path}: {error.strerror}") from None

    def note(self) -> str | None:
        """Return a note if bytes were replaced."""
        if not self.is_replaced:
            return None
        return f"{self.option} {self.path}: not all UTF-8; the other bytes are replaced by U+FFFD"

    def _replaced(self, text: str) -> str:
        """Return the text with U+FFFD for the bytes that were no UTF-8."""
        if text.isascii():
            return text
        data = text.encode("utf-8", "surrogateescape")
        replaced = data.decode("utf-8", "replace")
        self.is_replaced |= replaced.encode() != data
        return replaced
