"""A conversion: the new files, and what became of every key of the source."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gptcli.cli.output import one_line
from gptcli.cli.table import table
from gptcli.cli.views.counts import sizes
from gptcli.errors import count
from gptcli.weights.folders import INDEX

if TYPE_CHECKING:  # it imports torch
    from gptcli.convert.run import Conversion


def as_json(done: "Conversion") -> dict[str, Any]:
    """Return the conversion as plain data."""
    return {
        "source": str(done.plan.checkpoint.path),
        "output": str(done.output),
        "files": [{"name": file.name, "bytes": file.n_bytes} for file in done.files],
        "copied": list(done.copied),
        "source_layout": done.plan.detected.layout.name,
        "layout": done.layout.name,
        "config": done.config.model_dump(),
        "keys": [asdict(key) for key in _keys(done)],
        "notes": list(done.notes),
    }


def as_text(done: "Conversion") -> str:
    """Return a summary, then a line for every key of the source and every tensor that has none."""
    index = [INDEX] if len(done.files) > 1 else []
    names = ", ".join([*(file.name for file in done.files), *index, "config.json", *done.copied])
    n_bytes = sum(file.n_bytes for file in done.files)
    lines = [
        f"{done.output}: {names} ({count(n_bytes, 'byte')} of tensors)",
        f"layout: {done.layout.title} (the source's: {done.plan.detected.layout.title})",
        f"model: {sizes(done.config)}",
    ]
    rows = [
        (
            key.key or "",
            key.dtype,
            " × ".join(map(str, key.shape)),
            ", ".join(key.written_as) or "not written",
            key.reason,
        )
        for key in _keys(done)
    ]
    shown = table(("key", "dtype", "shape", "written as", ""), rows, numbers=())
    return "\n".join(map(one_line, lines)) + "\n\n" + shown


@dataclass(frozen=True)
class Key:
    """A key of the source and the new tensors that it is in, or why it is in none."""

    key: str | None  # None: the tensors are not made of any key
    dtype: str
    shape: tuple[int, ...]
    written_as: tuple[str, ...]
    reason: str = ""


def _keys(done: "Conversion") -> list[Key]:
    written: dict[str, list[str]] = {}
    zeros = []
    for tensor in (tensor for file in done.files for tensor in file.tensors):
        for source in tensor.sources:
            written.setdefault(source, []).append(tensor.name)
        if not tensor.sources:
            zeros.append(tensor.name)
    keys = []
    for row in done.rows:
        if row.source is not None and row.source in done.plan.checkpoint.tensors:
            info, names = done.plan.checkpoint.tensors[row.source], tuple(written.get(row.source, ()))
            keys.append(Key(row.source, info.dtype, info.shape, names, "" if names else row.detail))
    keys += [Key(key, "", (), (), "not a tensor of the model") for key in done.skipped]
    return keys + [Key(None, "", (), (name,), "zeros: the source has none") for name in zeros]
