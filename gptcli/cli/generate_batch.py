"""`gptcli generate --input`: records in, records out, and what is told meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gptcli import api
from gptcli.api import GenerationOptions, ModelSource, PromptRecord, Result
from gptcli.cli.generate_arguments import GenerateArguments
from gptcli.cli.json_text import to_json_line
from gptcli.cli.output import Notes, OutputWriter, print_stderr
from gptcli.cli.processes import SharedRecords, load_model
from gptcli.cli.progress import progress_bar
from gptcli.cli.prompt_records import choose_format, count_records, open_input, read_records
from gptcli.cli.read_ahead import ReadAhead
from gptcli.cli.record import batch_record
from gptcli.cli.record_file import RecordFile
from gptcli.errors import GptcliError, UsageError

if TYPE_CHECKING:
    from gptcli.api import LoadedModel

READ_AHEAD = 1024


def check_batch(arguments: GenerateArguments) -> None:
    """Raise `UsageError` for options of a batch that cannot be, before anything is loaded."""
    source, output = arguments.input, arguments.output
    if source is None:
        if (
            arguments.resume
            or arguments.force
            or arguments.fail_fast
            or arguments.column
            or arguments.input_format
        ):
            raise UsageError("--resume, --force, --fail-fast, --column, --input-format are for --input")
        return
    if arguments.prompt:
        raise UsageError("a prompt and --input: give one of them")
    choose_format(source, arguments.input_format, arguments.column)
    if str(source) != "-" and not source.exists():
        raise UsageError(f"--input {source}: no such file")
    if source.is_dir():
        raise UsageError(f"--input {source}: is a folder")
    _batch_size(arguments.batch_size)
    if arguments.resume and arguments.force:
        raise UsageError("--resume goes on with the output file, --force writes it anew; give one")
    if output is None:
        if arguments.resume or arguments.force:
            raise UsageError("--resume and --force are for an --output file")
        return
    if output.suffix.lower() != ".jsonl" and (output.is_file() or not output.exists()):
        raise UsageError(f"--output {output}: records are JSON lines; give a name ending in .jsonl")
    if source.exists() and output.exists() and source.samefile(output):
        raise UsageError(f"--output {output}: is the input")


def generate_batch(
    arguments: GenerateArguments,
    source: ModelSource,
    options: GenerationOptions,
    loading: dict[str, Any],
    notes: Notes,
) -> None:
    """Decode all prompts of the input; raises `GptcliError` in the end when records have errors.

    Of several processes the first reads and writes.
    """
    group = loading["group"]
    if group is not None and not group.is_first:
        arguments = replace(arguments, output=None, resume=False)
    with ExitStack() as opened:
        run = _BatchRun(arguments, options, notes, opened, group)
        model = load_model(source, notes, cache_tokens=0, **loading)
        run.decode(source, model)


class _BatchRun:
    """A run over many prompts; made before the model is loaded, so that faults of its files come first."""

    def __init__(
        self,
        arguments: GenerateArguments,
        options: GenerationOptions,
        notes: Notes,
        opened: ExitStack,
        group: Any,
    ) -> None:
        assert arguments.input is not None
        self._arguments, self._options, self._notes = arguments, options, notes
        is_first = group is None or group.is_first
        input_format = choose_format(arguments.input, arguments.input_format, arguments.column)
        self._file: RecordFile | None = None
        if arguments.output is not None:
            self._file = RecordFile(arguments.output, resume=arguments.resume, force=arguments.force)
            opened.callback(self._file.close)
        records: Iterator[PromptRecord] = iter(())
        if is_first:
            records = read_records(open_input(arguments.input), input_format, arguments.column)
        if self._file is not None and arguments.resume:
            self._file.skip_done(records)
        self._first = self._file.n_records if self._file else 0
        self._n_errors = self._file.n_errors if self._file else 0
        if self._first:
            notes.note(f"{self._first:,} records are there already")
        self._total = None if notes.quiet else count_records(arguments.input, input_format)
        own: ReadAhead[PromptRecord] = ReadAhead(records, READ_AHEAD)
        opened.callback(own.close)
        self._prompts: ReadAhead[PromptRecord] | SharedRecords[PromptRecord] = own
        if group is not None:
            self._prompts = SharedRecords(own, group)
            self._first = group.broadcast_object(self._first)

    def decode(self, source: ModelSource, model: LoadedModel) -> None:
        """Decode and write every record, and tell how it went."""
        self._source, self._model, self._writer = source, model, OutputWriter(None)
        self._n_records, self._n_tokens, self._n_cropped = self._first, 0, 0
        size = _batch_size(self._arguments.batch_size)
        size = api.fitting_batch_size(model) if size == "auto" else size
        start = time.perf_counter()
        results = api.generate_batch(
            model, self._prompts, self._options, batch_size=size, first_index=self._first
        )
        try:
            is_wanted = not self._notes.quiet and (self._file is not None or not sys.stdout.isatty())
            with progress_bar(self._total, is_wanted=is_wanted) as bar:
                for result in results:
                    self._write(result)
                    bar.advance(self._n_records, self._n_tokens)
        except BaseException:
            if self._file is not None and (n := self._file.count()) is not None:
                self._notes.note(f"{n:,} records are written; --resume goes on behind them")
            raise
        if self._arguments.stats:
            seconds, n_done = time.perf_counter() - start, self._n_records - self._first
            print_stderr(
                f"load {model.load_seconds:.2f} s · {n_done:,} records, {self._n_tokens:,} tokens in"
                f" {seconds:.2f} s, {self._n_tokens / seconds:,.1f} tokens/s,"
                f" {n_done / seconds:,.1f} records/s"
                f" · {size} side by side · {model.device} {model.dtype}"
            )
        if self._n_cropped:
            self._notes.warn(
                f"{self._n_cropped:,} prompts are longer than the context of {model.config.context_length}:"
                " only their ends were used (--overflow stop refuses them)"
            )
        if self._n_errors:
            raise GptcliError(f"{self._n_errors:,} of {self._n_records:,} records are errors")

    def _write(self, result: Result) -> None:
        if result.error is not None and self._arguments.fail_fast:
            raise GptcliError(f"--fail-fast: {result.error}")
        if self._file is not None or self._arguments.json:
            record = batch_record(result, self._source, self._model, logprobs=self._options.logprobs)
            line = to_json_line(record)
            if self._file is not None:
                self._file.write(line)
            else:
                self._writer.write(line + "\n")
        else:
            self._write_text(result)
        self._n_records += 1
        self._n_errors += result.error is not None
        self._n_cropped += result.is_cropped
        self._n_tokens += 0 if result.output is None else result.output.n_tokens

    def _write_text(self, result: Result) -> None:
        """Write every sample after a separator, but the first; an error's place stays empty."""
        output = result.output
        if result.error is not None:
            print_stderr(f"error: {result.error}")
        texts = [""] if output is None else [completion.text for completion in output.completions]
        prompt = "" if output is None or self._arguments.no_echo else output.prompt
        for i, text in enumerate(texts):
            separator = f"{self._arguments.separator}\n" if self._n_records or i else ""
            self._writer.write(f"{separator}{prompt}{text}\n")


def _batch_size(text: str) -> Any:
    """Return the number that `--batch-size` names, or `auto`; raises `UsageError` for anything else."""
    if text == "auto":
        return text
    if not (text.isdecimal() and int(text) >= 1):
        raise UsageError(f"--batch-size {text!r}: expected auto, or a whole number from 1 on")
    return int(text)
