"""A file of JSON lines that an interrupted run can continue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli.cli.files import check_writable
from gptcli.cli.run_facts import check_facts, write_facts
from gptcli.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from gptcli.api import PromptRecord


RECORD_START = b'{"id": '


class RecordFile:
    """An output file with one record per line, each handed to the system before the next is written.

    `n_records` and `n_errors` count the records that `skip_done` found in the file. What it held before
    stays until `begin`, which is called when there is something to write.
    """

    def __init__(self, path: Path, facts: dict[str, Any], *, resume: bool, force: bool) -> None:
        """Open or create the file; `facts` are those of the run, for a later one that continues it.

        Raises `ResourceError` if it has content and neither option is given, `UsageError` for one that
        another run has written, unless both are given.
        """
        self.path, self.n_records, self.n_errors = path, 0, 0
        self._facts, self._keeps, self._begun = facts, resume, False
        self._whole = 0  # bytes of whole records
        check_writable(path)
        self._is_new = not path.exists()
        holds_something = path.is_file() and path.stat().st_size > 0
        if holds_something and not (resume or force):
            raise ResourceError(f"--output {path}: exists; --resume continues it, --force overwrites it")
        if holds_something and resume and not force:
            check_facts(path, facts)
        try:
            # "a" creates a missing file and leaves an existing one as it is until the lock is taken.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ResourceError(f"--output {path}: {error.strerror}") from None
        try:
            self._lock()
        except BaseException:
            self._file.close()
            raise

    def begin(self) -> None:
        """Remove what does not belong to the run, now that it is known to work; again it does nothing."""
        if self._begun:
            return
        self._begun = True
        if self.path.is_file():
            self._file.truncate(self._whole if self._keeps else 0)
            write_facts(self.path, self._facts)

    def close(self) -> None:
        """Close the file, which releases its lock; one that was made for nothing is removed."""
        self._file.close()
        if self._is_new and not self._begun and self.path.is_file():
            self.path.unlink()

    def skip_done(self, prompts: "Iterator[PromptRecord]") -> None:
        """Consume the prompts that have a record; `begin` drops a last line that a kill cut short.

        Raises `UsageError` for a record of another prompt, and for a line that is not a record.
        """
        with self.path.open("rb") as written:
            for line in written:
                if not line.endswith(b"\n") and line.startswith(RECORD_START[: len(line)]):
                    break  # cut short: by a kill, or a full disk
                record, prompt = self._parse(line), next(prompts, None)
                if prompt is None or record["id"] != prompt.id or record.get("prompt") != prompt.prompt:
                    raise UsageError(
                        f"--resume: record {self.n_records + 1} of {self.path} is not that of this prompt"
                        f" (id {record['id']!r}); --force overwrites the file"
                    )
                self._whole += len(line)
                self.n_records += 1
                self.n_errors += "error" in record

    def write(self, line: str) -> None:
        """Append one record; raises `ResourceError` if it cannot be written as a whole."""
        self.begin()
        data = line.encode("utf-8", errors="replace") + b"\n"
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            raise ResourceError(f"--output {self.path}: {error.strerror}") from None

    def count(self) -> int | None:
        """Return the number of whole records in the file; None for a pipe or a device, which keep none.

        It counts lines, since a signal may come between writing a record and counting it.
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
                f"--resume: line {self.n_records + 1} of {self.path} is not a record;"
                " --force overwrites the file"
            )
        return record

    def _lock(self) -> None:
        """Lock the file, since two runs would mix their lines; raises `ResourceError` if one has it."""
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows has none
            return
        except BlockingIOError:
            raise ResourceError(f"--output {self.path}: another run is writing it") from None
        except OSError:  # a file system without locks
            return
