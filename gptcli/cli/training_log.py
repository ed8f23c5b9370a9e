"""The log of a training run: JSON lines on stdout, or text on stderr."""

import sys
from typing import Any

from gptcli.cli.json_text import to_json_line
from gptcli.cli.output import print_stderr


def print_json_line(record: dict[str, Any]) -> None:
    """Print one record of the log on stdout and flush it."""
    sys.stdout.write(to_json_line(record) + "\n")
    sys.stdout.flush()


class ProgressLog:
    """The log as text on stderr: every validation, the last step, and one step in `every`."""

    def __init__(self, quiet: bool, every: int = 10) -> None:
        self._quiet, self._every = quiet, every

    def __call__(self, record: dict[str, Any]) -> None:
        """Print a record of the log, unless `quiet`."""
        if self._quiet:
            return
        if "loss" not in record:
            nats, bits = record["validation_nats_per_token"], record["validation_bits_per_byte"]
            print_stderr(f"step {record['step']}: validation {nats:.4f} nats/token, {bits:.4f} bits/byte")
        elif record["step"] % self._every == 0 or record["seconds_left"] == 0:
            minutes, seconds = divmod(record["seconds_left"], 60)
            print_stderr(
                f"step {record['step']}: loss {record['loss']:.4f}, {record['tokens_per_second']:,} tokens/s,"
                f" {minutes}:{seconds:02} left"
            )
