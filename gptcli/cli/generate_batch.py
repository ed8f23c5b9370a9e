"""`gptcli generate --input`: continue many prompts, one record each."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli import api
from gptcli.api import GenerationOptions, ModelSource, PromptRecord, PromptSource, Result
from gptcli.cli.generate_arguments import GenerateArguments
from gptcli.cli.output import Notes, print_stderr
from gptcli.cli.processes import SharedRecords, load_model
from gptcli.cli.progress import progress_bar
from gptcli.cli.prompt_records import choose_format, count_records, open_input, read_records
from gptcli.cli.read_ahead import ReadAhead
from gptcli.cli.record_file import RecordFile
from gptcli.cli.result_writer import ResultWriter
from gptcli.cli.run_facts import run_facts
from gptcli.errors import GptcliError, UsageError, count

if TYPE_CHECKING:
    from gptcli.api import LoadedModel, ProcessGroup

READ_AHEAD = 1024  # records


def check_batch(arguments: GenerateArguments) -> None:
    """Raise `UsageError` for options that contradict each other, before anything is loaded."""
    source, output = arguments.input, arguments.output
    if source is None:
        if (
            arguments.resume
            or arguments.force
            or arguments.fail_fast
            or arguments.column
            or arguments.input_format
        ):
            raise UsageError("--resume, --force, --fail-fast, --column and --input-format need --input")
        return
    if arguments.prompt:
        raise UsageError("give a prompt or --input, not both")
    choose_format(source, arguments.input_format, arguments.column)
    if str(source) != "-" and not source.exists():
        raise UsageError(f"--input {source}: no such file")
    if source.is_dir():
        raise UsageError(f"--input {source}: is a folder")
    _batch_size(arguments.batch_size)
    if output is None:
        if arguments.resume or arguments.force:
            raise UsageError("--resume and --force need an --output file")
        return
    if output.suffix.lower() != ".jsonl" and (output.is_file() or not output.exists()):
        raise UsageError(f"--output {output}: records are JSON lines; give a name ending in .jsonl")
    if source.exists() and output.exists() and source.samefile(output):
        raise UsageError(f"--output {output}: is the input file as well; name another file")


def generate_batch(
    arguments: GenerateArguments,
    source: ModelSource,
    options: GenerationOptions,
    loading: dict[str, Any],
    notes: Notes,
) -> None:
    """Decode all prompts of the input; raises `GptcliError` at the end if records have errors.

    Of several processes the first reads and writes.
    """
    group = loading["group"]
    if group is not None and not group.is_first:
        arguments = replace(arguments, output=None, resume=False)
    with ExitStack() as opened:
        # The files are opened before the model is loaded, so that their faults come first.
        file = _open_output(arguments, run_facts(source, options, loading), opened)
        prompts = _open_input(arguments, file, group, opened)
        done = _Counts() if file is None else _Counts(file.n_records, file.n_errors)
        if done.n_records:
            notes.note(f"{arguments.output} holds {count(done.n_records, 'record')} already")
        if group is not None:
            done.n_records = group.broadcast_object(done.n_records)
        n_resumed, total = done.n_records, None if notes.quiet else _count_prompts(arguments)
        model = load_model(source, notes, cache_tokens=0, **loading)
        size = _batch_size(arguments.batch_size)
        size = api.fitting_batch_size(model) if size == "auto" else size
        writer = ResultWriter(arguments, file, source, model)
        start = time.perf_counter()
        results = api.generate_batch(model, prompts, options, batch_size=size, first_index=n_resumed)
        is_wanted = not notes.quiet and (file is not None or not sys.stdout.isatty())
        with _note_how_to_resume(file, notes), progress_bar(total, is_wanted=is_wanted) as bar:
            for result in results:
                writer.write(result)
                done.add(result)
                bar.advance(done.n_records, done.n_tokens)
        if file is not None:
            file.begin()  # there may have been no prompt
    if arguments.stats:
        seconds = time.perf_counter() - start
        print_stderr(_stats_line(done.n_records - n_resumed, done.n_tokens, seconds, size, model))
    if done.n_cropped:
        notes.warn(
            f"{count(done.n_cropped, 'prompt')} longer than the context of {model.config.context_length}:"
            " only the last tokens were used (--overflow stop refuses such prompts)"
        )
    if done.n_errors:
        raise GptcliError(f"errors in {done.n_errors:,} of {count(done.n_records, 'record')}")


@dataclass
class _Counts:
    """The counts of a run. Records and errors include those of a resumed file; the rest are of this run."""

    n_records: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    n_cropped: int = 0

    def add(self, result: Result) -> None:
        """Count one more result."""
        self.n_records += 1
        self.n_errors += result.error is not None
        self.n_cropped += result.is_cropped
        self.n_tokens += 0 if result.output is None else result.output.n_tokens


def _open_output(arguments: GenerateArguments, facts: dict[str, Any], opened: ExitStack) -> RecordFile | None:
    if arguments.output is None:
        return None
    file = RecordFile(arguments.output, facts, resume=arguments.resume, force=arguments.force)
    opened.callback(file.close)
    return file


def _open_input(
    arguments: GenerateArguments, file: RecordFile | None, group: ProcessGroup | None, opened: ExitStack
) -> PromptSource:
    """Return the prompts that have no record in `file` yet."""
    records: Iterator[PromptRecord] = iter(())
    if group is None or group.is_first:
        path, input_format = _input(arguments)
        stream = open_input(path)
        records = read_records(stream, path, input_format, arguments.column)
        if file is not None and arguments.resume:
            try:
                file.skip_done(records)
            except UsageError:
                stream.close()
                raise
    read_ahead: ReadAhead[PromptRecord] = ReadAhead(records, READ_AHEAD)
    opened.callback(read_ahead.close)
    if group is None:
        return read_ahead
    return SharedRecords(read_ahead, group)


def _count_prompts(arguments: GenerateArguments) -> int | None:
    return count_records(*_input(arguments))


def _input(arguments: GenerateArguments) -> tuple[Path, str]:
    """Return the path of the input and its format."""
    assert arguments.input is not None
    return arguments.input, choose_format(arguments.input, arguments.input_format, arguments.column)


@contextmanager
def _note_how_to_resume(file: RecordFile | None, notes: Notes) -> Iterator[None]:
    """Print how many records the file holds, and how to continue, if the block is interrupted."""
    try:
        yield
    except BaseException:
        if file is not None and (n := file.count()) is not None:
            notes.note(f"{file.path} holds {count(n, 'record')}; --resume continues after them")
        raise


def _stats_line(n_records: int, n_tokens: int, seconds: float, batch_size: int, model: LoadedModel) -> str:
    return (
        f"load {model.load_seconds:.2f} s · {count(n_records, 'record')}, {count(n_tokens, 'token')} in"
        f" {seconds:.2f} s, {n_tokens / seconds:,.1f} tokens/s, {n_records / seconds:,.1f} records/s"
        f" · batch size {batch_size} · {model.device} {model.dtype}"
    )


def _batch_size(text: str) -> Any:
    """Return the number that `--batch-size` names, or `auto`; raises `UsageError` for anything else."""
    if text == "auto":
        return text
    if not (text.isdecimal() and int(text) >= 1):
        raise UsageError(f"--batch-size {text!r}: expected auto or a whole number, 1 or more")
    return int(text)
