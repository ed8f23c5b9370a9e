"""The layout of a checkpoint, found by the names of its tensors, and the rule for each tensor."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import Shape, count_tensors
from gptcli.errors import WeightsError, count
from gptcli.weights.header import Checkpoint, TensorInfo
from gptcli.weights.layouts import HUGGINGFACE, LAYOUTS, NUMBER, TUTORIAL, Layout, Rule, fill, templates

# What torch's DataParallel, compile, FSDP and activation checkpointing put into names, at any depth.
TORCH_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# Heads for other tasks, next to a language model: transformers' classifiers, TRL's value head and the like.
OTHER_HEAD = re.compile(r"(score|classifier|qa_outputs|(?!lm_head|out_head)\w+_heads?)\.")
INT8 = "I8"
MAX_MISSING = 2000  # parameters that a report lists one by one
ADAPTER = re.compile(r"\.lora_|\.modules_to_save\.|^prompt_embeddings$|\.base_layer\.")


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
    """A checkpoint, its layout, and its tensors: those that match a rule, and the names of the others.

    `other_heads` are tensors of heads for other tasks than predicting the next token.
    """

    checkpoint: Checkpoint
    layout: Layout
    matches: tuple[TensorMatch, ...]
    other_heads: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def by_target(self) -> Mapping[str, TensorMatch]:
        """The tensor that fills each of our parameters, by our name."""
        return {target: match for match in self.matches for target in match.targets}

    @property
    def is_int8(self) -> bool:
        """True if the file holds linears in int8, each with a scale for every row."""
        return any(match.tensor.dtype == INT8 for match in self.matches)

    def check_count(self, config: ModelConfig) -> None:
        """Raise `WeightsError` for a few names that claim millions of parameters: all would be reported."""
        claimed, n_filled = count_tensors(config), len(self.by_target)
        if claimed > MAX_MISSING + 2 * n_filled:
            experts = f" of {count(config.n_experts, 'expert')}" if config.is_moe else ""
            raise WeightsError(
                f"{self.checkpoint.path}: its names claim {count(config.n_layers, 'block')}{experts}, that is"
                f" {count(claimed, 'parameter')}, and the file has {n_filled:,} of them"
            )


def detect_layout(checkpoint: Checkpoint) -> DetectedLayout:
    """Find the layout by the tensors' names; raise `WeightsError` for an unknown one, or a repeated name."""
    if adapters := [name for name in checkpoint.tensors if ADAPTER.search(name)]:
        raise WeightsError(adapter_message(checkpoint.path, f"it has {shorten(adapters, most=1)}"))
    for layout in LAYOUTS:
        bare = bare_names(checkpoint.tensors, layout)
        if bare is not None and (layout is not HUGGINGFACE or not _stores_linears(checkpoint, bare)):
            return _match(checkpoint, layout, bare)
    known = " or ".join(
        f"{layout.signature_names[0]!r} ({layout.title})" for layout in (HUGGINGFACE, TUTORIAL)
    )
    raise WeightsError(
        f"{checkpoint.path}: no layout that gptcli knows: expected names such as {known},"
        f" found {shorten(sorted(checkpoint.tensors)) or 'no tensors at all'}"
    )


def adapter_message(path: Path, reason: str) -> str:
    """Return the message for a LoRA adapter, with what makes a model of it."""
    return (
        f"{path}: an adapter (LoRA), not a model: {reason}; merge it into its base model with PEFT's"
        " merge_and_unload(), save that with save_pretrained(), and give its folder"
    )


def bare_names(names: Iterable[str], layout: Layout) -> dict[str, str] | None:
    """Return each name without what wrappers put before it; None if no name is of this layout.

    A wrapper is a module that holds the model, such as `transformer.` or `model.transformer.`. Its prefix is
    what precedes the names of the signature. A head may lie beside the model, in an outer wrapper.
    """
    unwrapped = {name: TORCH_WRAPPERS.sub("", name) for name in names}
    prefixes: set[str] = set()
    is_known = False
    for name in unwrapped.values():
        if found := next((s for s in layout.signature_names if f".{name}".endswith(f".{s}")), None):
            is_known = True
            prefixes.update(_ancestors(name.removesuffix(found)))
    if not is_known:
        return None
    bare = {}
    for name, inner in unwrapped.items():
        longest = max((p for p in _ancestors(inner) if p in prefixes), key=len, default="")
        bare[name] = inner.removeprefix(longest)
    return bare


def _ancestors(name: str) -> Iterator[str]:
    """Yield the beginnings of a name that end with a dot: `a.` and `a.b.` of `a.b.c`."""
    return (name[: dot.end()] for dot in re.finditer(r"\.", name))


def _stores_linears(checkpoint: Checkpoint, bare: Mapping[str, str]) -> bool:
    """Return whether the matrices lie as nn.Linear stores them, all of them that show it by their shape."""
    query_key_value = re.compile(r"h\.\d+\.attn\.c_attn\.weight")
    shapes = [t.shape for name, t in checkpoint.tensors.items() if query_key_value.fullmatch(bare[name])]
    return bool(shapes) and all(len(shape) == 2 and shape[0] == 3 * shape[1] for shape in shapes)


def shorten(names: Iterable[str], most: int = 4) -> str:
    """Return up to `most` names in one line, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _match(checkpoint: Checkpoint, layout: Layout, bare: Mapping[str, str]) -> DetectedLayout:
    matches: list[TensorMatch] = []
    other_heads: list[str] = []
    unexpected: list[str] = []
    seen: dict[str, str] = {}
    for name, tensor in checkpoint.tensors.items():
        if (twin := seen.setdefault(bare[name], name)) != name:
            raise WeightsError(f"{checkpoint.path}: {twin!r} and {name!r} are the same tensor of the model")
        rule, numbers = _find_rule(layout, bare[name])
        if rule is not None:
            matches.append(TensorMatch(name, tensor, rule, *numbers))
        else:
            (other_heads if OTHER_HEAD.match(bare[name]) else unexpected).append(name)
    return DetectedLayout(checkpoint, layout, tuple(matches), tuple(other_heads), tuple(unexpected))


def _find_rule(layout: Layout, name: str) -> tuple[Rule | None, tuple[int | None, int | None]]:
    """Return the rule for a name, and the numbers in the name: the block's, and the expert's or None."""
    numbers = [int(number) for number in re.findall(NUMBER, name)]
    block, expert, *_ = (*numbers, None, None)
    of_block, of_expert = templates(name)
    if of_block in layout.rule_of:
        return layout.rule_of[of_block], (block, None)
    return layout.rule_of.get(of_expert), (block, expert)
