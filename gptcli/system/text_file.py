"""A text file, or stdin, read piece by piece or line by line, decoded from any bytes."""

import codecs
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gptcli.errors import ResourceError, UsageError

PIECE_BYTES = 1 << 20
REPLACEMENT = "\ufffd"
# Marks that say how a text is encoded. Those of UTF-32 come first: they begin with UTF-16's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


def encoding_of(data: bytes) -> str:
    """Return the encoding that a byte order mark at the beginning names; without one UTF-8."""
    return next((encoding for mark, encoding in MARKS if data.startswith(mark)), "utf-8")


def decode_text(data: bytes, encoding: str | None = None) -> tuple[str, bool]:
    """Return a whole text, and whether bytes had to be replaced by U+FFFD.

    Without an encoding its byte order mark, which is no text, names one.
    """
    encoding = encoding or encoding_of(data)
    try:
        return data.decode(encoding), False
    except UnicodeDecodeError:
        return data.decode(encoding, "replace"), True


@dataclass
class TextFile:
    """A text that is read once; `n_bytes` is its size if that is known.

    A byte order mark is dropped and names the encoding, UTF-16 say; bytes that are none are replaced.
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
        data = self._read(PIECE_BYTES)
        encoding = encoding_of(data)
        is_utf8 = encoding.startswith("utf-8")
        decoder = codecs.getincrementaldecoder(encoding)("surrogateescape" if is_utf8 else "replace")
        while True:
            text = decoder.decode(data, final=not data)
            self.is_replaced |= not is_utf8 and REPLACEMENT in text
            yield self._replaced(text) if is_utf8 else text
            if not data:
                return
            data = self._read(PIECE_BYTES)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text, each as soon as it is there, without its line break."""
        line = self._line()
        encoding = encoding_of(line)
        if not encoding.startswith("utf-8"):
            whole = io.BytesIO(line + b"".join(iter(lambda: self._read(PIECE_BYTES), b"")))
            for text in io.TextIOWrapper(whole, encoding, errors="replace", newline="\n"):
                self.is_replaced |= REPLACEMENT in text
                yield text.removesuffix("\n").removesuffix("\r")
            return
        line = line.removeprefix(codecs.BOM_UTF8)
        while line:
            text = line.decode("utf-8", "surrogateescape")
            yield self._replaced(text.removesuffix("\n").removesuffix("\r"))
            line = self._line()

    def note(self) -> str | None:
        """Return a note if bytes were replaced."""
        if not self.is_replaced:
            return None
        return f"{self.option} {self.path}: not all UTF-8; the other bytes are replaced by U+FFFD"

    def _read(self, n_bytes: int) -> bytes:
        try:
            return self.file.read(n_bytes)
        except OSError as error:
            if error.errno is None:  # of a decompressor
                raise
            raise ResourceError(f"{self.option} {self.path}: {error.strerror or error}") from None

    def _line(self) -> bytes:
        try:
            return self.file.readline()
        except OSError as error:
            raise ResourceError(f"{self.option} {self.path}: {error.strerror or error}") from None

    def _replaced(self, text: str) -> str:
        """Return the text with U+FFFD for the bytes that were no UTF-8."""
        if text.isascii():
            return text
        data = text.encode("utf-8", "surrogateescape")
        replaced = data.decode("utf-8", "replace")
        self.is_replaced |= replaced.encode() != data
        return replaced
