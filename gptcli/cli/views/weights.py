"""A weights file: its tensors, the model in it, and the load report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gptcli.cli.output import one_line
from gptcli.cli.table import table
from gptcli.cli.views.counts import sizes
from gptcli.config.presets import ConfigSource
from gptcli.errors import WeightsError, count
from gptcli.weights.detect import detect_layout
from gptcli.weights.files import open_checkpoint
from gptcli.weights.header import Checkpoint
from gptcli.weights.plan import LoadPlan, plan_checkpoint
from gptcli.weights.report import Row, check_report, load_report
from gptcli.weights.tokenizer_source import TokenizerSource, folder_tokenizer, named_tokenizer, size_notes


@dataclass(frozen=True)
class WeightsView:
    """The content of a file's header; without a loadable model `fault` says why, and `plan` may be None."""

    checkpoint: Checkpoint
    plan: LoadPlan | None
    report: Sequence[Row]
    fault: str | None
    tokenizer: TokenizerSource | None = None

    @classmethod
    def open(cls, path: Path, layers: Sequence[ConfigSource], tokenizer: Path | None = None) -> "WeightsView":
        """Read the header, and the tokenizer next to the file unless one is named.

        Raises `WeightsError` only for a file without a readable header.
        """
        checkpoint = open_checkpoint(path)
        view = cls._of_checkpoint(checkpoint, layers)
        try:
            own = folder_tokenizer(checkpoint.folder) if tokenizer is None else named_tokenizer(tokenizer)
        except WeightsError as error:
            return view if view.fault else replace(view, fault=str(error))
        return replace(view, tokenizer=own)

    @classmethod
    def _of_checkpoint(cls, checkpoint: Checkpoint, layers: Sequence[ConfigSource]) -> "WeightsView":
        try:
            plan = plan_checkpoint(detect_layout(checkpoint), layers)
        except WeightsError as error:
            return cls(checkpoint, None, (), str(error))
        report = load_report(plan)
        try:
            check_report(plan, report)
        except WeightsError as error:
            return cls(checkpoint, plan, report, str(error))
        return cls(checkpoint, plan, report, None)

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes of the plan, and on how the tokenizer fits the model."""
        if self.plan is None:
            return ()
        return (*self.plan.notes, *(size_notes(self.tokenizer, self.plan.config) if self.tokenizer else ()))

    @property
    def tokenizer_name(self) -> str | None:
        """Return the name of the tokenizer that goes with the file; None if there is no model or a fault."""
        if self.tokenizer is not None:
            return self.tokenizer.encoding.name
        return self.plan.config.tokenizer if self.plan and not self.fault else None

    def as_json(self) -> dict[str, Any]:
        """Return the tensors in the file's order, then what the loader does with them."""
        plan = self.plan
        return {
            "path": str(self.checkpoint.path),
            "files": [str(path) for path in self.checkpoint.files],
            "bytes": self.checkpoint.n_bytes,
            "metadata": dict(self.checkpoint.metadata),
            "layout": plan.detected.layout.name if plan else None,
            "preset": plan.fitting_preset if plan else None,
            "config": plan.config.model_dump() if plan else None,
            "config_origin": dict(plan.resolved.origin) if plan else None,
            "tokenizer": self.tokenizer_name,
            "tensors": [
                {"name": name, "dtype": t.dtype, "shape": t.shape, "bytes": t.n_bytes, "file": str(t.file)}
                for name, t in self.checkpoint.tensors.items()
            ],
            "report": [
                {"source": row.source, "targets": row.targets, "action": row.action, "detail": row.detail}
                for row in self.report
            ],
            "fault": self.fault,
        }

    def as_text(self) -> str:
        """Return a summary, then one line for each tensor of the file and each parameter that it lacks."""
        return "\n".join(self._summary()) + "\n\n" + self._table()

    def _summary(self) -> list[str]:
        found = self.checkpoint
        tensors, files = count(len(found.tensors), "tensor"), count(len(found.files), "file")
        lines = [f"{found.path}: {tensors}, {count(found.n_bytes, 'byte')} in {files}"]
        if self.plan:
            lines += [
                f"layout: {self.plan.detected.layout.title}",
                f"model: {sizes(self.plan.config)}",
                f"preset that fits: {self.plan.fitting_preset or 'none'}",
            ]
        if self.tokenizer_name:
            n = f", {count(self.tokenizer.encoding.n_tokens, 'token')}" if self.tokenizer else ""
            lines.append(f"tokenizer: {self.tokenizer_name}{n}")
        if found.metadata:
            lines.append("metadata: " + ", ".join(f"{key}={value}" for key, value in found.metadata.items()))
        return [one_line(line) for line in lines]

    def _table(self) -> str:
        reported = {row.source: row for row in self.report if row.action != "tied"}
        rows = []
        for name, tensor in self.checkpoint.tensors.items():
            shape = " × ".join(map(str, tensor.shape)) or "scalar"
            row = reported.get(name)
            report = (row.action, _targets(row), row.detail) if row else ("", "", "")
            rows.append((name, tensor.dtype, shape, f"{tensor.n_bytes:,}", *report))
        for row in self.report:
            if row.action in ("missing", "tied"):
                rows.append((row.source or "", "", "", "", row.action, _targets(row), row.detail))
        return table(("tensor", "dtype", "shape", "bytes", "how", "parameter", ""), rows, numbers=(3,))


def _targets(row: Row) -> str:
    """Return the name of a row's parameter, or one name with braces for the three of a split tensor."""
    if len(row.targets) != 3:
        return ", ".join(row.targets)
    first, *_ = row.targets
    names = "|".join(target.split(".")[3] for target in row.targets)
    return first.replace(first.split(".")[3], f"{{{names}}}")
