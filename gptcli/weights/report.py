"""The load report: one row for every tensor of the file, and one for every parameter that the file lacks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gptcli.config.dtypes import DTYPES, WEIGHT_DTYPES
from gptcli.config.shapes import Shape, is_quantized, parameter_shapes
from gptcli.errors import WeightsError
from gptcli.weights.detect import INT8, TensorMatch, shorten
from gptcli.weights.layouts import NUMBER, fill, scale_of, templates
from gptcli.weights.plan import LoadPlan

Action = Literal["as is", "transposed", "split", "tied", "ignored", "missing", "unexpected", "wrong shape"]

FLOATS = tuple(DTYPES[name].safetensors for name in WEIGHT_DTYPES)
_ACTIONS: dict[str, Action] = {
    "same": "as is",
    "transpose": "transposed",
    "split": "split",
    "split rows": "split",
    "ignore": "ignored",
}


@dataclass(frozen=True)
class Row:
    """One row of the report; `source` is None for a missing tensor, `targets` is empty for an unused one."""

    source: str | None
    targets: tuple[str, ...]
    action: Action
    detail: str = ""


def load_report(plan: LoadPlan) -> list[Row]:
    """Return a row for every tensor of the file, then one for every parameter that no tensor fills."""
    expected = parameter_shapes(plan.config)
    for target, match in plan.detected.by_target.items():
        if match.tensor.dtype == INT8 and is_quantized(target):
            expected[scale_of(target)] = expected.get(target, ())[:1]
    rows = [_row(plan, match, expected) for match in plan.detected.matches]
    filled = {target for row in rows for target in row.targets}
    if plan.head in ("embedding", "unused") and not plan.head_is_embedding:
        rows.append(Row("tok_emb.weight", ("out_head.weight",), "tied", "the embedding serves as head"))
    rows += [Row(name, (), "ignored", "a head for another task") for name in plan.detected.other_heads]
    rows += [Row(name, (), "unexpected", "not a tensor of this layout") for name in plan.detected.unexpected]
    rows += [
        Row(None, (target,), "missing", f"expected as {_source_name(plan, target)!r}")
        for target in expected
        if target not in filled
    ]
    return rows


def check_report(plan: LoadPlan, rows: Sequence[Row]) -> None:
    """Raise one `WeightsError` that names everything missing, unexpected or misshapen; return if all fits."""
    faults = []
    missing = [_source_name(plan, row.targets[0]) for row in rows if row.action == "missing"]
    missing = list(dict.fromkeys(missing))  # the three targets of a split tensor have one name in the file
    unexpected = [row.source or "" for row in rows if row.action == "unexpected"]
    wrong = [f"{row.source}: {row.detail}" for row in rows if row.action == "wrong shape"]
    if missing:
        faults.append(f"{len(missing)} missing: {shorten(missing)}")
    if unexpected:
        faults.append(f"{len(unexpected)} unexpected: {shorten(unexpected)}")
    if wrong:
        faults.append(shorten(wrong, most=2))
    if faults:
        path = plan.checkpoint.path
        raise WeightsError(
            f"{path}: tensors do not fit the model: {'; '.join(faults)} (all: gptcli inspect {path})"
        )


def _row(plan: LoadPlan, match: TensorMatch, expected: dict[str, Shape]) -> Row:
    targets, action = match.targets, _ACTIONS[match.rule.transform]
    if action == "ignored":
        return Row(match.name, (), "ignored", "a mask buffer, not a weight")
    if targets == ("out_head.weight",) and plan.config.tie_embeddings:
        if not plan.head_is_embedding:
            return Row(match.name, (), "ignored", "the config ties the head to the embedding")
        targets = ("tok_emb.weight",)
        return Row(match.name, (*targets, "out_head.weight"), action, "the head serves as embedding")
    is_int8 = match.tensor.dtype == INT8 and scale_of(targets[0]) in expected
    if match.tensor.dtype not in FLOATS and not is_int8:
        detail = f"dtype {match.tensor.dtype}, where one of {', '.join(FLOATS)} is expected"
        return Row(match.name, targets, "wrong shape", detail)
    wanted = expected.get(targets[0])
    if wanted is None:
        return Row(match.name, (), "unexpected", f"the model has no {targets[0]}")
    if match.target_shape() != wanted:
        return Row(match.name, targets, "wrong shape", _shape_message(match, wanted))
    detail = "head, unless it equals the embedding" if targets == ("out_head.weight",) else ""
    return Row(match.name, targets, action, detail if plan.head == "if different" else "")


def _shape_message(match: TensorMatch, wanted: Shape) -> str:
    """Return both shapes, as the file would have them, and the likely cause."""
    in_file = list(wanted[::-1] if match.rule.is_transposed else wanted)
    if match.rule.is_split:
        in_file[match.rule.split_axis] *= 3
    cause = ""
    if list(match.tensor.shape) == in_file[::-1]:
        cause = ", the other way around: was it transposed when it was saved?"
    return f"shape {list(match.tensor.shape)}, expected {in_file}{cause}"


def _source_name(plan: LoadPlan, target: str) -> str:
    """Return the name of one of our parameters in this file's layout."""
    numbers = [int(number) for number in re.findall(NUMBER, target)]
    block, expert, *_ = (*numbers, None, None)
    sources = plan.detected.layout.sources
    for template in templates(target):
        if template in sources:
            return fill(sources[template], block, expert)
    raise AssertionError(f"no rule fills {target}")
