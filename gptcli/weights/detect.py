"""The layout of a checkpoint, found by the names of its tensors, and the rule for each tensor."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gptcli.config.shapes import Shape
from gptcli.errors import WeightsError
from gptcli.weights.header import Checkpoint, TensorInfo
from gptcli.weights.layouts import LAYOUTS, Layout, Rule, fill

_NUMBER = r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)"


@dataclass(frozen=True)
class TensorMatch:
    """A tensor of the file, its name there, and the rule that its name matches."""

    name: str
    tensor: TensorInfo
    rule: Rule
    block: int | None
    expert: int | None

    @property
    def targets(self) -> tuple[str, ...]:
        """Full names of our parameters that it fills."""
        return tuple(fill(target, self.block, self.expert) for target in self.rule.targets)

    def target_shape(self) -> Shape:
        """Return the shape that each of its parameters gets."""
        shape, axis = list(self.tensor.shape), self.rule.split_axis
        if self.rule.is_split and shape and shape[axis] % 3 == 0:
            shape[axis] //= 3
        return tuple(shape[::-1] if self.rule.is_transposed else shape)

    def parameters(self, whole: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and the numbers of each of our parameters in it: views, no copies."""
        for index, target in enumerate(self.targets):
            yield target, self.rule.part(whole, index)


@dataclass(frozen=True)
class DetectedLayout:
    """A checkpoint, its layout, and its tensors: those that match a rule, and the names of the others."""

    checkpoint: Checkpoint
    layout: Layout
    matches: tuple[TensorMatch, ...]
    unexpected: tuple[str, ...]

    @property
    def by_target(self) -> Mapping[str, TensorMatch]:
        """The tensor that fills each of our parameters, by our name."""
        return {target: match for match in self.matches for target in match.targets}


def detect_layout(checkpoint: Checkpoint) -> DetectedLayout:
    """Find the layout by the tensors' names; raise `WeightsError` for an unknown one, or a repeated name."""
    for layout in LAYOUTS:
        bare = {name: strip_prefixes(name, layout.prefixes) for name in checkpoint.tensors}
        if set(layout.signature_names) & set(bare.values()):
            return _match(checkpoint, layout, bare)
    names = sorted(checkpoint.tensors)
    known = " or ".join(f"{layout.signature_names[0]!r} ({layout.title})" for layout in LAYOUTS)
    raise WeightsError(
        f"{checkpoint.path}: no layout that gptcli knows: expected names such as {known},"
        f" found {shorten(names) or 'no tensors at all'}"
    )


def strip_prefixes(name: str, prefixes: tuple[str, ...]) -> str:
    """Return `name` without any of `prefixes`, in whatever order and number it begins with them."""
    while prefix := next((p for p in prefixes if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def shorten(names: Iterable[str], most: int = 4) -> str:
    """Return up to `most` names in one line, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _match(checkpoint: Checkpoint, layout: Layout, bare: Mapping[str, str]) -> DetectedLayout:
    rules = {rule.source: rule for rule in layout.rules}
    matches, unexpected = [], []
    seen: dict[str, str] = {}
    for name, tensor in checkpoint.tensors.items():
        if (twin := seen.setdefault(bare[name], name)) != name:
            raise WeightsError(f"{checkpoint.path}: {twin!r} and {name!r} are the same tensor of the model")
        rule, numbers = _find_rule(rules, bare[name])
        if rule is None:
            unexpected.append(name)
        else:
            matches.append(TensorMatch(name, tensor, rule, *numbers))
    return DetectedLayout(checkpoint, layout, tuple(matches), tuple(unexpected))


def _find_rule(rules: Mapping[str, Rule], name: str) -> tuple[Rule | None, tuple[int | None, int | None]]:
    """Return the rule for a name, and the numbers in the name: the block's, and the expert's or None."""
    numbers = [int(number) for number in re.findall(_NUMBER, name)]
    block, expert, *_ = (*numbers, None, None)
    template = re.sub(_NUMBER, "{i}", name, count=1)
    if template in rules:
        return rules[template], (block, None)
    return rules.get(re.sub(_NUMBER, "{e}", template, count=1)), (block, expert)
