"""The numbers in a weights file: statistics of every tensor, or the differences from another file."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gptcli.cli.table import table
from gptcli.errors import WeightsError, count
from gptcli.weights.detect import shorten
from gptcli.weights.diff import DifferenceRow, differences
from gptcli.weights.files import open_checkpoint
from gptcli.weights.header import Checkpoint, TensorInfo
from gptcli.weights.tensor_data import TensorStats, tensor_stats


@dataclass(frozen=True)
class StatsView:
    """Statistics of each tensor; with `check`, a tensor with NaN or infinity is a fault."""

    checkpoint: Checkpoint
    stats: dict[str, TensorStats]
    check: bool

    @classmethod
    def read(cls, path: Path, *, check: bool) -> "StatsView":
        """Read every tensor of the file at `path`."""
        checkpoint = open_checkpoint(path)
        stats = {name: tensor_stats(tensor) for name, tensor in _with_progress(checkpoint)}
        return cls(checkpoint, stats, check)

    @property
    def fault(self) -> str | None:
        broken = [name for name, stats in self.stats.items() if not stats.is_finite]
        if not self.check or not broken:
            return None
        return (
            f"{self.checkpoint.path}: NaN or infinity in {count(len(broken), 'tensor')}:"
            f" {shorten(broken, most=8)}"
        )

    def as_json(self) -> Any:
        tensors = [{"name": name, **asdict(stats)} for name, stats in self.stats.items()]
        return {"path": str(self.checkpoint.path), "tensors": tensors, "fault": self.fault}

    def as_text(self) -> str:
        rows = [
            (
                name,
                *(f"{value:.6g}" for value in (s.minimum, s.maximum, s.mean, s.std)),
                f"{s.share_zero:.2%}",
                f"{s.n_nan:,}",
                f"{s.n_infinite:,}",
            )
            for name, s in self.stats.items()
        ]
        headers = ("tensor", "minimum", "maximum", "mean", "std", "zeros", "NaN", "infinite")
        return table(headers, rows, numbers=range(1, len(headers)))


@dataclass(frozen=True)
class DiffView:
    """The differences between two files, parameter by parameter."""

    first: Path
    second: Path
    rows: list[DifferenceRow]
    fault: str | None = None

    @classmethod
    def read(cls, first: Path, second: Path) -> "DiffView":
        """Read both files."""
        return cls(first, second, list(differences(open_checkpoint(first), open_checkpoint(second))))

    def as_json(self) -> Any:
        rows = [asdict(row) for row in self.rows]
        return {"first": str(self.first), "second": str(self.second), "parameters": rows}

    def as_text(self) -> str:
        other = [row for row in self.rows if row.verdict != "equal"]
        equal = len(self.rows) - len(other)
        if not other:
            return f"all equal: {count(equal, 'parameter')}\n"
        rows = [
            (row.name, row.verdict, *_sizes(row), row.detail)
            for row in sorted(other, key=lambda row: -row.largest_absolute)
        ]
        headers = ("parameter", "", "largest difference", "relative", "")
        summary = f"{count(len(self.rows), 'parameter')}: {equal} equal, {len(other)} not\n\n"
        return summary + table(headers, rows, numbers=(2, 3))


def _sizes(row: DifferenceRow) -> tuple[str, str]:
    if row.verdict != "differs":
        return "", ""
    return f"{row.largest_absolute:.6g}", f"{row.largest_relative:.3g}"


def _with_progress(checkpoint: Checkpoint) -> Iterator[tuple[str, TensorInfo]]:
    """Yield the tensors one by one, with a progress bar if stderr is a terminal.

    Raises `WeightsError` for a file without tensors.
    """
    tensors: Iterable[tuple[str, TensorInfo]] = checkpoint.tensors.items()
    if not checkpoint.tensors:
        raise WeightsError(f"{checkpoint.path}: holds no tensors")
    if not sys.stderr.isatty():
        yield from tensors
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=checkpoint.n_bytes)
        for name, tensor in tensors:
            yield name, tensor
            progress.advance(task, tensor.n_bytes)
