"""`gptcli generate --input`: where prompts come from, where records go, and what is said meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gptcli.cli.jobs import Job, choose_format, count_jobs, open_input, read_jobs
from gptcli.cli.progress import progress_bar
from gptcli.cli.read_ahead import ReadAhead
from gptcli.cli.record_file import RecordFile
from gptcli.cli.render import Answer, Notes, say, to_json_line
from gptcli.errors import GptcliError, UsageError

if TYPE_CHECKING:  # both import torch
    from gptcli.cli.batch import Done
    from gptcli.cli.decoding import Decoding
    from gptcli.cli.shared_jobs import SharedJobs
    from gptcli.parallel.process_group import ProcessGroup

READ_AHEAD = 1024


@dataclass(frozen=True)
class ManyOptions:
    """The options of `--input`, and of how its records look."""

    input: Path | None
    format: str | None
    column: str | None
    batch_size: str
    output: Path | None
    resume: bool
    force: bool
    fail_fast: bool
    json: bool
    echo: bool
    separator: str

    def check(self, prompt: Sequence[str] | None) -> None:
        """Raise `UsageError` for what cannot be, before anything is loaded."""
        if self.input is None:
            if self.resume or self.force or self.fail_fast or self.column or self.format:
                raise UsageError("--resume, --force, --fail-fast, --column, --input-format are for --input")
            return
        if prompt:
            raise UsageError("a prompt and --input: give one of them")
        choose_format(self.input, self.format, self.column)
        if str(self.input) != "-" and not self.input.exists():
            raise UsageError(f"--input {self.input}: no such file")
        if self.input.is_dir():
            raise UsageError(f"--input {self.input}: is a folder")
        if self.batch_size != "auto" and not (self.batch_size.isdecimal() and int(self.batch_size) >= 1):
            raise UsageError(f"--batch-size {self.batch_size!r}: expected auto, or a whole number from 1 on")
        if self.resume and self.force:
            raise UsageError("--resume goes on with the output file, --force writes it anew; give one")
        if self.output is None:
            if self.resume or self.force:
                raise UsageError("--resume and --force are for an --output file")
            return
        if self.output.suffix.lower() != ".jsonl" and (self.output.is_file() or not self.output.exists()):
            raise UsageError(f"--output {self.output}: records are JSON lines; give a name ending in .jsonl")
        if self.input.exists() and self.output.exists() and self.input.samefile(self.output):
            raise UsageError(f"--output {self.output}: is the input")


def generate_many(decoding: Decoding, options: ManyOptions, notes: Notes, *, stats: bool) -> None:
    """Decode all prompts of the input; raises `GptcliError` in the end when records have errors."""
    if decoding.group is not None and not decoding.group.is_first:  # the first one reads and writes
        options = replace(options, output=None, resume=False)
    with ExitStack() as opened:
        _Many(options, notes, opened, decoding.group).run(decoding, stats=stats)


class _Many:
    """A run over many prompts; made before the model is loaded, so that its files' faults come first."""

    def __init__(
        self, options: ManyOptions, notes: Notes, opened: ExitStack, group: ProcessGroup | None
    ) -> None:
        assert options.input is not None
        self._options, self._notes = options, notes
        is_first = group is None or group.is_first
        format_ = choose_format(options.input, options.format, options.column)
        self._file: RecordFile | None = None
        if options.output is not None:
            self._file = RecordFile(options.output, resume=options.resume, force=options.force)
            opened.callback(self._file.close)
        jobs = read_jobs(open_input(options.input), format_, options.column) if is_first else iter(())
        if self._file is not None and options.resume:
            self._file.skip_done(jobs)
        self._first = self.n_records = self._file.n_records if self._file else 0
        self.n_errors = self._file.n_errors if self._file else 0
        self.n_cropped = 0
        if self._first:
            notes.note(f"{self._first:,} records are there already")
        self._total = None if notes.quiet else count_jobs(options.input, format_)
        own: ReadAhead[Job] = ReadAhead(jobs, READ_AHEAD)
        opened.callback(own.close)
        self._jobs: ReadAhead[Job] | SharedJobs[Job] = own
        if group is not None:
            from gptcli.cli.shared_jobs import SharedJobs

            self._jobs = SharedJobs(own, group)
            self._first = self.n_records = group.broadcast_object(self._first)

    def run(self, decoding: Decoding, *, stats: bool) -> None:
        """Load the model, decode, and say how it went."""
        from gptcli.cli.batch import BatchRun, fitting_size

        _ = decoding.sampling  # its faults come before the model is loaded
        ready = decoding.load(self._notes, cache_tokens=0)
        self._answer = Answer(None)
        asked = self._options.batch_size
        size = fitting_size(ready) if asked == "auto" else int(asked)
        if ready.group is not None:
            size = min(ready.group.all_gather_object(size))
        run = BatchRun(decoding, ready, size, self._write)
        start = time.perf_counter()
        try:
            is_wanted = not self._notes.quiet and (self._file is not None or not sys.stdout.isatty())
            with progress_bar(self._total, is_wanted=is_wanted) as self._bar:
                run.run(self._jobs, self._first)
        except BaseException:
            if self._file is not None and (n := self._file.count()) is not None:
                self._notes.note(f"{n:,} records are written; --resume goes on behind them")
            raise
        if stats:
            seconds, done = time.perf_counter() - start, self.n_records - self._first
            say(
                f"load {ready.load_seconds:.2f} s · {done:,} records, {run.tokens:,} tokens in"
                f" {seconds:.2f} s, {run.tokens / seconds:,.1f} tokens/s, {done / seconds:,.1f} records/s"
                f" · {run.size} side by side · {ready.device} {ready.dtype}"
            )
        if self.n_cropped:
            self._notes.warn(
                f"{self.n_cropped:,} prompts are longer than the context of {ready.config.context_length}:"
                " only their ends were used (--overflow stop refuses them)"
            )
        if self.n_errors:
            raise GptcliError(f"{self.n_errors:,} of {self.n_records:,} records are errors")

    def _write(self, done: Done, tokens: int) -> None:
        """Put down one outcome, the next in order; `tokens` were generated so far."""
        if done.error is not None and self._options.fail_fast:
            raise GptcliError(f"--fail-fast: {done.error}")
        if self._file is not None or self._options.json:
            line = to_json_line(done.record())
            if self._file is not None:
                self._file.write(line)
            else:
                self._answer.write(line + "\n")
        else:
            self._show(done)
        self.n_records += 1
        self.n_errors += done.error is not None
        self.n_cropped += done.generation is not None and done.generation.request.warning() is not None
        self._bar.advance(self.n_records, tokens)

    def _show(self, done: Done) -> None:
        """As text: every sample behind a separator, but the first; an error's place stays empty."""
        if done.error is not None:
            say(f"error: {done.error}")
        texts = [""] if done.generation is None else [c.text for c in done.generation.completions]
        prompt = done.job.prompt if self._options.echo and done.generation is not None else ""
        for i, text in enumerate(texts):
            separator = f"{self._options.separator}\n" if self.n_records or i else ""
            self._answer.write(f"{separator}{prompt}{text}\n")
