"""The layouts of weights files, as tables: their name for every tensor of ours, and how it becomes ours.

same        as it lies there
transpose   a Conv1D matrix, stored input-first
split       query, key and value side by side in one tensor (a matrix input-first as well)
ignore      a buffer that some versions saved: matched as a whole name, never read
"""

from dataclasses import dataclass
from typing import Literal

How = Literal["same", "transpose", "split", "ignore"]

QKV = ("W_query", "W_key", "W_value")


@dataclass(frozen=True)
class Rule:
    """One row: `source` in the file fills `target`; `{i}` is the block, `{qkv}` each of query, key, value."""

    target: str
    source: str
    how: How = "same"

    @property
    def targets(self) -> tuple[str, ...]:
        """The one target, or the three that a split one fills, in their order along the last axis."""
        if self.how == "split":
            return tuple(self.target.replace("{qkv}", name) for name in QKV)
        return (self.target,) if self.target else ()


@dataclass(frozen=True)
class Layout:
    """A family of files that name their tensors alike."""

    name: str
    title: str
    prefixes: tuple[str, ...]
    rules: tuple[Rule, ...]
    # Names by which the layout is known: any one of them settles it.
    marks: tuple[str, ...]


WRAPPERS = ("module.", "_orig_mod.")  # torch's DataParallel and compile put these before every name

HUGGINGFACE = Layout(
    "huggingface",
    "Hugging Face GPT-2",
    (*WRAPPERS, "transformer."),
    (
        Rule("tok_emb.weight", "wte.weight"),
        Rule("pos_emb.weight", "wpe.weight"),
        Rule("trf_blocks.{i}.norm1.scale", "h.{i}.ln_1.weight"),
        Rule("trf_blocks.{i}.norm1.shift", "h.{i}.ln_1.bias"),
        Rule("trf_blocks.{i}.att.{qkv}.weight", "h.{i}.attn.c_attn.weight", "split"),
        Rule("trf_blocks.{i}.att.{qkv}.bias", "h.{i}.attn.c_attn.bias", "split"),
        Rule("trf_blocks.{i}.att.out_proj.weight", "h.{i}.attn.c_proj.weight", "transpose"),
        Rule("trf_blocks.{i}.att.out_proj.bias", "h.{i}.attn.c_proj.bias"),
        Rule("trf_blocks.{i}.norm2.scale", "h.{i}.ln_2.weight"),
        Rule("trf_blocks.{i}.norm2.shift", "h.{i}.ln_2.bias"),
        Rule("trf_blocks.{i}.ff.layers.0.weight", "h.{i}.mlp.c_fc.weight", "transpose"),
        Rule("trf_blocks.{i}.ff.layers.0.bias", "h.{i}.mlp.c_fc.bias"),
        Rule("trf_blocks.{i}.ff.layers.2.weight", "h.{i}.mlp.c_proj.weight", "transpose"),
        Rule("trf_blocks.{i}.ff.layers.2.bias", "h.{i}.mlp.c_proj.bias"),
        Rule("final_norm.scale", "ln_f.weight"),
        Rule("final_norm.shift", "ln_f.bias"),
        Rule("out_head.weight", "lm_head.weight"),
        Rule("", "h.{i}.attn.bias", "ignore"),
        Rule("", "h.{i}.attn.masked_bias", "ignore"),
    ),
    ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight"),
)

_TUTORIAL_NAMES = (
    "tok_emb.weight",
    "pos_emb.weight",
    *(f"trf_blocks.{{i}}.att.{name}.{kind}" for name in (*QKV, "out_proj") for kind in ("weight", "bias")),
    *(f"trf_blocks.{{i}}.ff.layers.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")),
    *(f"trf_blocks.{{i}}.norm{n}.{kind}" for n in (1, 2) for kind in ("scale", "shift")),
    "final_norm.scale",
    "final_norm.shift",
    "out_head.weight",
)

TUTORIAL = Layout(
    "tutorial",
    "the tutorial's",
    WRAPPERS,
    (
        *(Rule(name, name) for name in _TUTORIAL_NAMES),
        Rule("", "trf_blocks.{i}.att.mask", "ignore"),
    ),
    ("tok_emb.weight", "pos_emb.weight", "trf_blocks.0.att.W_query.weight"),
)

LAYOUTS = (HUGGINGFACE, TUTORIAL)
