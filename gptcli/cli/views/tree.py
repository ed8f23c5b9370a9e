"""The module tree of a model, from its shapes: names, kinds, shapes, counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gptcli.cli.table import table
from gptcli.cli.views.counts import title
from gptcli.config.cost import count_parameters
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ResolvedConfig
from gptcli.config.shapes import Shape, block_shapes, outer_shapes, parameter_shapes

# The class of the module with each name.
KINDS = {
    "tok_emb": "Embedding",
    "pos_emb": "Embedding",
    "att": "MultiHeadAttention",
    "layers": "Sequential",
    **dict.fromkeys(("fc1", "fc2", "fc3", "shared"), "ModuleList"),
    "activation": "Swish",
    "norm1": "LayerNorm",
    "norm2": "LayerNorm",
    "final_norm": "LayerNorm",
}

FEED_FORWARDS = {False: "FeedForward", True: "GatedFeedForward"}


@dataclass
class Node:
    """A module, or a parameter, which has a shape; `parts` are a module's parameters and child modules."""

    name: str
    kind: str = ""
    shape: Shape | None = None
    note: str = ""
    parts: list["Node"] = field(default_factory=list)
    folded_count: int | None = None

    @property
    def count(self) -> int:
        if self.folded_count is not None:
            return self.folded_count
        return prod(self.shape) if self.shape is not None else sum(part.count for part in self.parts)


@dataclass(frozen=True)
class TreeView:
    """The module tree of the model that a config describes."""

    model: ResolvedConfig
    fault: str | None = None

    def as_json(self) -> Any:
        """Return every parameter with its shape and count."""
        config = self.model.config
        return {
            "preset": self.model.preset,
            "config": config.model_dump(),
            "config_origin": dict(self.model.origin),
            "parameters": {
                name: {"shape": shape, "count": prod(shape)}
                for name, shape in parameter_shapes(config).items()
            },
            "total": count_parameters(config),
        }

    def as_text(self) -> str:
        """Return the tree for people; one line stands for parts that are all alike."""
        config = self.model.config
        rows = [("GPTModel", "", "", f"{count_parameters(config):,}", ""), *_rows(_parts(config), "")]
        return f"{title(self.model)}\n\n" + table(
            ("module", "kind", "shape", "parameters", ""), rows, numbers=(3,)
        )


def _parts(config: ModelConfig) -> list[Node]:
    """Return the parts of the model in order, with one block for all blocks."""
    outer = {node.name: node for node in _modules(outer_shapes(config))}
    block = _fold(Node("trf_blocks.0", "TransformerBlock", parts=_modules(block_shapes(config))))
    feed_forward = next(node for node in block.parts if node.name == "ff")
    feed_forward.kind = "MixtureOfExperts" if config.is_moe else FEED_FORWARDS[config.is_gated]
    for shared in (node for node in feed_forward.parts if node.name == "shared"):
        for expert in shared.parts:
            expert.kind = FEED_FORWARDS[config.is_gated]
    if config.n_layers > 1:
        block.name += f" … {config.n_layers - 1}"
        block.note = f"× {config.n_layers} = {block.count * config.n_layers:,}"
    head = outer.get("out_head", Node("out_head", "Linear", note="tied: tok_emb.weight"))
    return [outer["tok_emb"], outer["pos_emb"], block, outer["final_norm"], head]


def _fold(node: Node) -> Node:
    """Replace the numbered parts of a module list, which are all alike, by the first of them."""
    parts = [_fold(part) for part in node.parts]
    if node.kind == "ModuleList" and len(parts) > 1:
        first = parts[0]
        first.note = f"× {len(parts)} = {node.count:,}"
        first.name += f" … {len(parts) - 1}"
        parts = [first]
    return Node(node.name, node.kind, node.shape, node.note, parts, node.count)


def _modules(shapes: Mapping[str, Shape]) -> list[Node]:
    """Turn dotted parameter names into nested nodes, in the same order."""
    root = Node("")
    for name, shape in shapes.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            child = next((n for n in node.parts if n.name == part), None)
            if child is None:
                child = Node(part, KINDS.get(part, ""))
                node.parts.append(child)
            node = child
        node.parts.append(Node(leaf, shape=shape))
        if not node.kind:
            node.kind = "Linear"  # a module with parameters that `KINDS` does not name
    return root.parts


def _rows(nodes: list[Node], indent: str) -> Iterator[tuple[str, str, str, str, str]]:
    for node in nodes:
        last = node is nodes[-1]
        shape = "" if node.shape is None else " × ".join(map(str, node.shape))
        count = f"{node.count:,}" if node.count else ""
        yield f"{indent}{'└─ ' if last else '├─ '}{node.name}", node.kind, shape, count, node.note
        yield from _rows(node.parts, indent + ("   " if last else "│  "))
