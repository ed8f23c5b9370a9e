"""The layouts of weights files, as tables: the file's name for each parameter, and how it is transformed.

same        no change
transpose   a Conv1D matrix, stored input-first
split       query, key and value concatenated in one tensor (a matrix is stored input-first as well)
split rows  query, key and value below each other in one tensor, stored as nn.Linear does
ignore      a buffer that some versions saved: matched as a whole name, never read
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from gptcli.config import nanogpt
from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import is_quantized

Transform = Literal["same", "transpose", "split", "split rows", "ignore"]

QKV = ("W_query", "W_key", "W_value")


# A number between dots in a name: a block's, then an expert's.
NUMBER = r"(?<=\.)(0|[1-9]\d{0,5})(?=\.)"


def templates(name: str) -> tuple[str, str]:
    """Return a name with `{i}` for its first number, and with `{e}` for the second one as well."""
    of_block = re.sub(NUMBER, "{i}", name, count=1)
    return of_block, re.sub(NUMBER, "{e}", of_block, count=1)


def is_int8_scale(name: str) -> bool:
    """Return whether a parameter of ours is the scales of an int8 weight, one for each row."""
    return name.endswith(".scale") and "norm" not in name


def scaled_weight(scale: str) -> str:
    """Return the name of the weight that these scales belong to."""
    return scale.removesuffix("scale") + "weight"


def scale_of(weight: str) -> str:
    """Return the name of the scales of a weight."""
    return weight.removesuffix("weight") + "scale"


def fill(template: str, block: int | None, expert: int | None) -> str:
    """Return a template with the block's number in place of `{i}` and the expert's in place of `{e}`."""
    return template.replace("{i}", str(block)).replace("{e}", str(expert))


@dataclass(frozen=True)
class Rule:
    """One row of a layout: the tensor `source` of the file fills our parameter `target`.

    Both are templates: `{i}` is the block, `{e}` the expert, `{qkv}` each of query, key and value.
    """

    target: str
    source: str
    transform: Transform = "same"

    @property
    def targets(self) -> tuple[str, ...]:
        """The one target, or the three of a split tensor in their order."""
        if self.is_split:
            return tuple(self.target.replace("{qkv}", name) for name in QKV)
        return (self.target,) if self.target else ()

    @property
    def is_split(self) -> bool:
        """True if the tensor holds query, key and value."""
        return self.transform in ("split", "split rows")

    @property
    def is_transposed(self) -> bool:
        """True if a matrix is stored input-first."""
        return self.transform in ("transpose", "split")

    @property
    def split_axis(self) -> int:
        """The axis of the file's tensor along which query, key and value follow each other."""
        return -1 if self.is_transposed else 0

    def part(self, whole: Any, index: int) -> Any:
        """Return target number `index` of a file's tensor (NumPy's or torch's): a view in our shape."""
        if self.is_split and whole.ndim:
            n = whole.shape[self.split_axis] // 3
            rows = slice(index * n, (index + 1) * n)
            whole = whole[..., rows] if self.is_transposed else whole[rows]
        return whole.T if self.is_transposed and whole.ndim == 2 else whole


@dataclass(frozen=True)
class Layout:
    """A family of files with the same tensor names; one of `signature_names` is enough to detect it.

    Names may have any prefix, the same for all. `arithmetic` are the config keys that its programs share, and
    that neither tensors nor a config file may show.
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    signature_names: tuple[str, ...]
    arithmetic: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The layout's template for each template of ours; the first, where it has several."""
        return {target: rule.source for rule in reversed(self.rules) for target in rule.targets}

    def written_as(
        self, parameters: Collection[str], config: ModelConfig
    ) -> Iterator[tuple[str, Rule, list[str]]]:
        """Yield the tensors of a file with these parameters of ours: name, rule, and what is in it."""
        written: set[str] = set()
        n_experts = max(config.n_experts, config.n_shared_experts)
        for rule in self.rules:
            blocks = range(config.n_layers) if "{i}" in rule.source else range(1)
            experts = range(n_experts) if "{e}" in rule.source else range(1)
            for i, e in product(blocks, experts):
                targets = [fill(target, i, e) for target in rule.targets]
                # Some layouts know a parameter by several names. The first one is written.
                if targets and all(target in parameters and target not in written for target in targets):
                    written.update(targets)
                    yield fill(rule.source, i, e), rule, targets

    @cached_property
    def rule_of(self) -> Mapping[str, Rule]:
        """The rule for each template of the layout."""
        return {rule.source: rule for rule in self.rules}


def _feed_forwards(ours: str, theirs: str) -> tuple[Rule, ...]:
    """Return the rules for gated feed-forwards and mixtures of experts; `ours` and `theirs` begin the names.

    Every layout stores these matrices as nn.Linear does. A gated layer is known by LLaMA's names, by those of
    LLaMA's first code (w1, w3, w2), and by the tutorial's; a mixture by the tutorial's names, and each of its
    experts by LLaMA's. `save_model` writes the first name of each.
    """
    names = {"gate_proj": ("gate_proj", "w1", "fc1"), "up_proj": ("up_proj", "w3", "fc2")}
    names |= {"down_proj": ("down_proj", "w2", "fc3")}
    numbered = {"gate_proj": "fc1.{e}", "up_proj": "fc2.{e}", "down_proj": "fc3.{e}"}
    pairs = [(name, alias) for name, aliases in names.items() for alias in aliases]
    pairs += [(target, target) for target in numbered.values()]
    pairs += [
        (numbered[n], f"experts.{{e}}.{alias}") for n, aliases in names.items() for alias in aliases[:2]
    ]
    shared = (*names, "layers.0", "layers.2")
    pairs += [(f"shared.{{e}}.{name}", f"shared.{{e}}.{name}") for name in shared]
    rules = [Rule(f"{ours}gate.weight", f"{theirs}gate.weight")]
    rules += [
        Rule(f"{ours}{a}.{kind}", f"{theirs}{b}.{kind}") for a, b in pairs for kind in ("weight", "bias")
    ]
    betas = ("layers.1.beta", "activation.beta")
    return (*rules, *(Rule(f"{ours}{name}", f"{theirs}{name}") for name in betas))


_AS_LINEAR: dict[Transform, Transform] = {"transpose": "same", "split": "split rows"}

HUGGINGFACE = Layout(
    "huggingface",
    "Hugging Face GPT-2",
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
        *_feed_forwards("trf_blocks.{i}.ff.", "h.{i}.mlp."),
        Rule("final_norm.scale", "ln_f.weight"),
        Rule("final_norm.shift", "ln_f.bias"),
        Rule("out_head.weight", "lm_head.weight"),
        Rule("", "h.{i}.attn.bias", "ignore"),
        Rule("", "h.{i}.attn.masked_bias", "ignore"),
    ),
    ("wte.weight", "wpe.weight", "h.0.attn.c_attn.weight"),
)

# The names of Hugging Face's GPT-2, with matrices as nn.Linear stores them.
NANOGPT = Layout(
    "nanogpt",
    "nanoGPT's",
    tuple(
        replace(rule, transform=_AS_LINEAR.get(rule.transform, rule.transform)) for rule in HUGGINGFACE.rules
    ),
    HUGGINGFACE.signature_names,
    nanogpt.ARITHMETIC,
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

_TUTORIAL_RULES = (
    *(Rule(name, name) for name in _TUTORIAL_NAMES),
    *_feed_forwards("trf_blocks.{i}.ff.", "trf_blocks.{i}.ff."),
    Rule("", "trf_blocks.{i}.att.mask", "ignore"),
)

TUTORIAL = Layout(
    "tutorial",
    "the tutorial's",
    (
        *_TUTORIAL_RULES,
        *(
            Rule(scale_of(rule.target), scale_of(rule.source))
            for rule in _TUTORIAL_RULES
            if is_quantized(rule.target)
        ),
    ),
    ("tok_emb.weight", "pos_emb.weight", "trf_blocks.0.att.W_query.weight"),
)

LAYOUTS = (HUGGINGFACE, NANOGPT, TUTORIAL)
