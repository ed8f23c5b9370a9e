"""The results of a batch, written as they come: JSON lines to a file or stdout, or text to stdout."""

from typing import TYPE_CHECKING

from gptcli.cli.generate_arguments import GenerateArguments
from gptcli.cli.json_text import to_json_line
from gptcli.cli.output import OutputWriter, print_stderr
from gptcli.cli.record import batch_record
from gptcli.cli.record_file import RecordFile
from gptcli.errors import GptcliError

if TYPE_CHECKING:  # a loaded model imports torch
    from gptcli.api import LoadedModel, ModelSource, Result


class ResultWriter:
    """Writes to `file`, or to stdout without one: JSON with `--json`, else text."""

    def __init__(
        self,
        arguments: GenerateArguments,
        file: RecordFile | None,
        source: "ModelSource",
        model: "LoadedModel",
    ) -> None:
        self._arguments, self._file, self._source, self._model = arguments, file, source, model
        self._stdout = OutputWriter(None)
        self._separator = ""  # before the first text there is none

    def write(self, result: "Result") -> None:
        """Write one result; raises `GptcliError` for one with an error if `--fail-fast` is given."""
        if result.error is not None and self._arguments.fail_fast:
            raise GptcliError(f"--fail-fast: {result.error}")
        if self._file is None and not self._arguments.json:
            self._write_text(result)
            return
        line = to_json_line(
            batch_record(result, self._source, self._model, logprobs=self._arguments.logprobs)
        )
        if self._file is not None:
            self._file.write(line)
        else:
            self._stdout.write(line + "\n")

    def _write_text(self, result: "Result") -> None:
        """Write every sample, with a separator between texts; the text of an error is empty."""
        output = result.output
        if result.error is not None:
            print_stderr(f"error: {result.error}")
        texts = [""] if output is None else [completion.text for completion in output.completions]
        prompt = "" if output is None or self._arguments.no_echo else output.prompt
        for text in texts:
            self._stdout.write(f"{self._separator}{prompt}{text}\n")
            self._separator = f"{self._arguments.separator}\n"
