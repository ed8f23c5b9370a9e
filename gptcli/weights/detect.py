"""Which layout a checkpoint has, and which rule of that layout each of its tensors answers to."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gptcli.config.shapes import Shape
from gptcli.errors import WeightsError
from gptcli.weights.header import Checkpoint, TensorInfo
from gptcli.weights.layouts import LAYOUTS, Layout, Rule, fill

_NUMBER = r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)"


@dataclass(frozen=True)
class Match:
    """A tensor of the file (`name` as it stands there) and the rule it answers to."""

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
        """The shape that each target would get from it."""
        shape = self.tensor.shape
        if self.rule.how == "split" and shape:
            shape = (*shape[:-1], shape[-1] // 3) if shape[-1] % 3 == 0 else shape
        return shape[::-1] if self.rule.how in ("transpose", "split") else shape


@dataclass(frozen=True)
class Recognised:
    """A checkpoint read through one layout."""

    checkpoint: Checkpoint
    layout: Layout
    matches: tuple[Match, ...]
    unexpected: tuple[str, ...]

    @property
    def by_target(self) -> Mapping[str, Match]:
        return {target: match for match in self.matches for target in match.targets}


def recognise(checkpoint: Checkpoint) -> Recognised:
    """Find the layout by its names; raises `WeightsError` when it is none of ours, or a name comes twice."""
    for layout in LAYOUTS:
        bare = {name: strip_prefixes(name, layout.prefixes) for name in checkpoint.tensors}
        if set(layout.marks) & set(bare.values()):
            return _match(checkpoint, layout, bare)
    names = sorted(checkpoint.tensors)
    known = " or ".join(f"{layout.marks[0]!r} ({layout.title})" for layout in LAYOUTS)
    raise WeightsError(
        f"{checkpoint.path}: no layout that gptcli knows: expected names such as {known},"
        f" found {shorten(names) or 'no tensors at all'}"
    )


def strip_prefixes(name: str, prefixes: tuple[str, ...]) -> str:
    """`name` without any of `prefixes`, however many stand before it."""
    while prefix := next((p for p in prefixes if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def shorten(names: Iterable[str], most: int = 4) -> str:
    """Up to `most` names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _match(checkpoint: Checkpoint, layout: Layout, bare: Mapping[str, str]) -> Recognised:
    rules = {rule.source: rule for rule in layout.rules}
    matches, unexpected = [], []
    seen: dict[str, str] = {}
    for name, tensor in checkpoint.tensors.items():
        if (twin := seen.setdefault(bare[name], name)) != name:
            raise WeightsError(f"{checkpoint.path}: {twin!r} and {name!r} are the same tensor of the model")
        rule, numbers = _find(rules, bare[name])
        if rule is None:
            unexpected.append(name)
        else:
            matches.append(Match(name, tensor, rule, *numbers))
    return Recognised(checkpoint, layout, tuple(matches), tuple(unexpected))


def _find(rules: Mapping[str, Rule], name: str) -> tuple[Rule | None, tuple[int | None, int | None]]:
    """The rule of a name, and the numbers in it: the block's and, where the rule has one, the expert's."""
    numbers = [int(number) for number in re.findall(_NUMBER, name)]
    block, expert, *_ = (*numbers, None, None)
    template = re.sub(_NUMBER, "{i}", name, count=1)
    if template in rules:
        return rules[template], (block, None)
    return rules.get(re.sub(_NUMBER, "{e}", template, count=1)), (block, expert)
