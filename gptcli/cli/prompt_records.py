"""The prompts of a .txt, .jsonl or .csv file, or of a pipe, as records."""

import csv
import io
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from gptcli.api.batch import PromptRecord
from gptcli.cli.bounded import MAX_PROMPT_BYTES, TOO_LONG, bounded_lines
from gptcli.errors import UsageError
from gptcli.system.text_file import encoding_of

FORMATS = ("txt", "jsonl", "csv")


def choose_format(path: Path, name: str | None, column: str | None) -> str:
    """Return the input's format: `name`, or by the file's ending; for a pipe text, or CSV with a column.

    Raises `UsageError` for an unknown ending, and for a column without CSV or CSV without a column.
    """
    ending = path.suffix.lower().lstrip(".")
    if name is None and str(path) == "-":
        name = "txt" if column is None else "csv"
    if name is None and ending not in FORMATS:
        raise UsageError(
            f"--input {path}: expected .txt, .jsonl or .csv; for another ending give --input-format"
        )
    if (column is not None) != ((name or ending) == "csv"):
        raise UsageError(
            "--column names the prompts' column in a .csv file: a .csv file needs it, other files have none"
        )
    return name or ending


def open_input(path: Path) -> BinaryIO:
    """Open the input for reading; `-` is stdin. Raises `UsageError` if it cannot be opened."""
    if str(path) == "-":
        if sys.stdin is None:
            raise UsageError("--input -: stdin is closed")
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror}") from None


def read_records(file: BinaryIO, path: Path, format_: str, column: str | None) -> Iterator[PromptRecord]:
    """Yield the records one by one; a line that cannot be read becomes a record with an `error`."""
    with file:
        text = _as_utf8(file)
        if format_ == "csv":
            assert column is not None
            yield from _csv_records(text, path, column)
        else:
            yield from _line_records(text, path, format_)


def _as_utf8(file: BinaryIO) -> BinaryIO:
    """Return a file of UTF-8: this one, unless its byte order mark names another encoding."""
    beginning = file.peek(4) if isinstance(file, io.BufferedReader) else b""
    encoding = encoding_of(beginning)
    if encoding.startswith("utf-8"):
        return file
    return io.BytesIO(file.read().decode(encoding, "replace").encode())


def _line_records(file: BinaryIO, path: Path, format_: str) -> Iterator[PromptRecord]:
    index = 0
    for number, line in enumerate(bounded_lines(file, path), 1):
        if line is None:
            yield PromptRecord(index, number, error=f"line {number} has {TOO_LONG}")
            index += 1
            continue
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig", errors="replace")
        if format_ == "txt":
            yield PromptRecord(index, number, text)
        elif text.strip():
            yield _json_record(index, number, text)
        else:
            continue  # a blank line between JSON records
        index += 1


def _json_record(index: int, number: int, text: str) -> PromptRecord:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return PromptRecord(index, number, error=f"line {number} is not JSON: {str(error)[:100]}")
    if not isinstance(values, dict):
        return PromptRecord(index, number, error=f"line {number}: expected a JSON object, found {text[:40]}")
    id_, prompt, max_tokens = values.get("id", number), values.get("prompt"), values.get("max_new_tokens")
    faults = []
    if isinstance(id_, str):
        id_ = _whole_characters(id_)
    elif not _is_whole(id_):
        faults.append("id: expected a string or a whole number")
        id_ = number
    if not isinstance(prompt, str):
        faults.append("prompt: expected a string" if "prompt" in values else "prompt: missing")
        prompt = ""
    if max_tokens is not None and not (_is_whole(max_tokens) and max_tokens >= 0):
        faults.append("max_new_tokens: expected a whole number, 0 or more")
    fault = f"line {number}: {'; '.join(faults)}" if faults else None
    return PromptRecord(index, id_, _whole_characters(prompt), max_tokens, fault)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _whole_characters(text: str) -> str:
    r"""Replace lone surrogates, which JSON can spell ("\ud800") and UTF-8 cannot."""
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def _csv_records(file: BinaryIO, path: Path, column: str) -> Iterator[PromptRecord]:
    csv.field_size_limit(MAX_PROMPT_BYTES)
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
        rows = csv.DictReader(_csv_lines(text, path))
        try:
            names = rows.fieldnames or ()
        except csv.Error as error:
            raise UsageError(f"--input: the first line is not CSV: {error}") from None
        if column not in names:
            raise UsageError(f"--column {column!r}: the file's columns are {', '.join(names) or 'none'}")
        for index in itertools.count():
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield PromptRecord(index, index + 1, error=f"line {rows.line_num} is not CSV: {error}")
                continue
            prompt = row[column]
            fault = None if prompt is not None else f"line {rows.line_num} ends before column {column!r}"
            yield PromptRecord(index, row.get("id") or index + 1, prompt or "", error=fault)


def _csv_lines(text: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a CSV file; raises `UsageError` for one that seems to have no end."""
    while line := text.readline(MAX_PROMPT_BYTES):
        if len(line) == MAX_PROMPT_BYTES and not line.endswith("\n"):
            raise UsageError(f"--input {path}: a line has {TOO_LONG}")
        yield line


def count_records(path: Path, format_: str) -> int | None:
    """Return the number of records in a file, for the progress bar; None for a pipe."""
    if not path.is_file():
        return None
    if format_ == "csv":
        csv.field_size_limit(MAX_PROMPT_BYTES)
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as text, suppress(csv.Error):
            return sum(1 for _ in csv.reader(text)) - 1
        return None
    with path.open("rb") as file:
        lines = bounded_lines(file, path)
        return sum(1 for line in lines if format_ == "txt" or line is None or line.strip())
