"""Records out, a line of JSON each, in a file that an interrupted run can go on with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli.cli.files import check_writable
from gptcli.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from gptcli.api import PromptRecord


class RecordFile:
    """One record a line, each with the system before the next; `skip_done` counts those that are there.

    A line that a kill cut short is dropped by it; nothing else that was written is ever touched.
    """

    def __init__(self, path: Path, *, resume: bool, force: bool) -> None:
        """Open or make the file; raises `ResourceError` for one that exists and is not to be touched."""
        self.path, self.n_records, self.n_errors = path, 0, 0
        check_writable(path)
        if path.is_file() and path.stat().st_size > 0 and not (resume or force):
            raise ResourceError(f"--output {path}: exists; --resume goes on with it, --force writes it anew")
        try:
            # "a" makes a file that is not there and leaves alone what is, until the lock is ours.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ResourceError(f"--output {path}: {error.strerror}") from None
        try:
            self._lock()
            if path.is_file() and not resume:
                self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Give the file, and its lock, back."""
        self._file.close()

    def skip_done(self, prompts: "Iterator[PromptRecord]") -> None:
        """Take from `prompts` those whose records the file holds; raises `UsageError` where they differ."""
        whole = 0
        with self.path.open("rb") as written:
            for line in written:
                if not line.endswith(b"\n"):
                    break  # cut short: by a kill, or a full disk
                record, prompt = self._parse(line), next(prompts, None)
                if prompt is None or record["id"] != prompt.id or record.get("prompt") != prompt.prompt:
                    raise UsageError(
                        f"--resume: record {self.n_records + 1} of {self.path} belongs to another input"
                        f" (id {record['id']!r}); --force writes it anew"
                    )
                whole += len(line)
                self.n_records += 1
                self.n_errors += "error" in record
        self._file.truncate(whole)

    def write(self, line: str) -> None:
        """Add one record; raises `ResourceError` when the disk does not take all of it."""
        data = line.encode("utf-8", errors="replace") + b"\n"
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            raise ResourceError(f"--output {self.path}: {error.strerror}") from None

    def count(self) -> int | None:
        """How many whole records lie in the file; None for a pipe or a device, which keep none.

        Read from the file, since a signal may come between a record's writing and its counting.
        """
        if not self.path.is_file():
            return None
        with self.path.open("rb") as written:
            return sum(line.endswith(b"\n") for line in written)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or "id" not in record:
            raise UsageError(
                f"--resume: line {self.n_records + 1} of {self.path} is no record; --force writes it anew"
            )
        return record

    def _lock(self) -> None:
        """Two runs that write one file would tear each other's lines."""
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows has none
            return
        except BlockingIOError:
            raise ResourceError(f"--output {self.path}: another run is writing it") from None
        except OSError:  # a file system without locks
            return
