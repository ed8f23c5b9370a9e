"""The config of a model: its keys, their types, ranges and defaults."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gptcli.config.activations import ACTIVATIONS, canonical_activation
from gptcli.config.choices import (
    GATES,
    GPT2_END_OF_TEXT,
    ExpertKind,
    FeedForwardKind,
    TokenizerName,
    nearest,
)
from gptcli.errors import ConfigError

# A larger size overflows the 32-bit sizes of the kernels. No published model comes near it.
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 10_000
MAX_EXPERTS = 4096


def _kind(values: dict[str, Any]) -> str:
    """Return the kind of feed-forward that has the width, bias and activation; in a mixture, its experts'."""
    return str(values["expert_feed_forward" if values["feed_forward"] == "moe" else "feed_forward"])


def _default_activation(values: dict[str, Any]) -> Any:
    return GATES.get(_kind(values), "gelu_tanh")


def _default_ffn_dim(values: dict[str, Any]) -> int:
    """Return 4·C; for a gated kind a width of the same cost, by the rule of LLaMA's published model code."""
    width = 4 * int(values["emb_dim"])
    if _kind(values) not in GATES:
        return width
    width = int(2 * width / 3)
    if values["ffn_dim_multiplier"] is not None:
        width = int(values["ffn_dim_multiplier"] * width)
    multiple = int(values["ffn_multiple_of"])
    return multiple * -(-width // multiple)


def _default_ffn_bias(values: dict[str, Any]) -> bool:
    return _kind(values) in ("mlp", "glu")  # Shazeer 2020 has no biases, Dauphin et al. have


def _default_end_of_text(values: dict[str, Any]) -> int | None:
    """Return the id of `<|endoftext|>` in the vocabulary; None if it has none."""
    if values["tokenizer"] == "gpt2-first-ranks":
        return int(values["vocab_size"]) - 1
    return GPT2_END_OF_TEXT if values["vocab_size"] > GPT2_END_OF_TEXT else None


class ModelConfig(BaseModel):
    """The shape and arithmetic of one GPT; immutable, and always valid.

    The first seven keys are the tutorial's `GPT_CONFIG_124M`; the rest default to what that model does.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    vocab_size: int = Field(ge=1, le=MAX_SIZE)
    context_length: int = Field(ge=1, le=MAX_SIZE)
    emb_dim: int = Field(ge=1, le=MAX_SIZE // 4)
    n_heads: int = Field(ge=1, le=MAX_SIZE)
    n_layers: int = Field(ge=1, le=MAX_LAYERS)
    drop_rate: float = Field(ge=0, le=1)
    qkv_bias: bool
    tie_embeddings: bool = False
    norm_eps: float = Field(default=1e-5, gt=0, le=1)
    norm_unbiased: bool = False
    norm_bias: bool = True
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    attn_out_bias: bool = True
    feed_forward: FeedForwardKind = "mlp"
    expert_feed_forward: ExpertKind = "swiglu"
    n_experts: int = Field(default=8, ge=1, le=MAX_EXPERTS)
    n_experts_per_token: int = Field(default=2, ge=1, le=MAX_EXPERTS)
    n_shared_experts: int = Field(default=0, ge=0, le=MAX_EXPERTS)
    activation: str = Field(default_factory=_default_activation)
    swish_beta: float = 1.0
    swish_learn_beta: bool = False
    ffn_dim_multiplier: float | None = Field(default=None, gt=0, le=1000)
    ffn_multiple_of: int = Field(default=256, ge=1, le=MAX_SIZE)
    ffn_dim: int = Field(default_factory=_default_ffn_dim, ge=1, le=MAX_SIZE)
    ffn_bias: bool = Field(default_factory=_default_ffn_bias)
    ffn_drop_rate: float = Field(default=0.0, ge=0, le=1)
    tokenizer: TokenizerName = "gpt2"
    eos_token_id: int | tuple[int, ...] | None = Field(default_factory=_default_end_of_text)
    bos_token_id: int | None = Field(default_factory=_default_end_of_text, ge=0)

    @field_validator("activation", mode="before")
    @classmethod
    def _check_activation(cls, value: Any) -> str:
        if isinstance(value, str) and value in get_args(FeedForwardKind):
            raise ValueError(f"activation {value!r} is a feed-forward: write feed_forward: {value}")
        name = canonical_activation(value) if isinstance(value, str) else None
        if name not in ACTIVATIONS:
            *names, last = map(repr, ACTIVATIONS)
            raise ValueError(
                f"activation must be one of {', '.join(names)} or {last}, got {shorten_value(value)}"
            )
        return str(name)

    @field_validator("eos_token_id", mode="before")
    @classmethod
    def _read_end_tokens(cls, value: Any) -> Any:
        """Return one id as itself, several as a tuple, and None for none; a negative id never comes."""
        if value is None:
            return None
        ids = value if isinstance(value, (list, tuple)) else [value]
        if any(type(each) is not int for each in ids):
            raise ValueError(
                f"eos_token_id must be a whole number or a list of them, got {shorten_value(value)}"
            )
        ids = tuple(sorted({each for each in ids if each >= 0}))
        return ids if len(ids) > 1 else next(iter(ids), None)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> "ModelConfig":
        faults = [fault for fault in (*self._size_faults(), *self._feed_forward_faults()) if fault]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _size_faults(self) -> tuple[str | None, ...]:
        V, bos = self.vocab_size, self.bos_token_id
        beyond = [token for token in sorted(self.eos_token_ids) if token >= V]
        return (
            f"n_heads must divide emb_dim: {self.emb_dim} / {self.n_heads} is not a whole number"
            if self.emb_dim % self.n_heads
            else None,
            "norm_unbiased needs an emb_dim of 2 or more: it divides by emb_dim - 1"
            if self.norm_unbiased and self.emb_dim == 1
            else None,
            f"tokenizer gpt2-first-ranks needs a vocab_size from 257 to {GPT2_END_OF_TEXT + 1}, got {V}"
            if self.tokenizer == "gpt2-first-ranks" and not 257 <= V <= GPT2_END_OF_TEXT + 1
            else None,
            f"eos_token_id must be below vocab_size ({V}), got {', '.join(map(str, beyond))}"
            if beyond
            else None,
            f"bos_token_id must be below vocab_size ({V}), got {bos}"
            if bos is not None and bos >= V
            else None,
        )

    def _feed_forward_faults(self) -> tuple[str | None, ...]:
        """Return a message for each key that the feed-forward does not use, unless it has its default."""
        unused = {
            "feed_forward: moe": (
                self.is_moe,
                ("n_experts", "n_experts_per_token", "n_shared_experts", "expert_feed_forward"),
            ),
            "activation: swish": (self.activation == "swish", ("swish_beta", "swish_learn_beta")),
            "a gated feed_forward": (self.is_gated, ("ffn_dim_multiplier", "ffn_multiple_of")),
        }
        return (
            f"n_experts_per_token {self.n_experts_per_token} is more than n_experts {self.n_experts}"
            if self.is_moe and self.n_experts_per_token > self.n_experts
            else None,
            *(
                f"{key} needs {what}"
                for what, (is_used, keys) in unused.items()
                for key in keys
                if not is_used and getattr(self, key) != type(self).model_fields[key].default
            ),
        )

    @property
    def head_dim(self) -> int:
        """Width of one attention head, D."""
        return self.emb_dim // self.n_heads

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text; none for a model that never ends one."""
        eos = self.eos_token_id
        return frozenset(eos) if isinstance(eos, tuple) else frozenset() if eos is None else frozenset({eos})

    def score_scale(self, layer: int) -> float:
        """Return what the products of queries and keys are multiplied by: 1 / √D, in some models by layer.

        Source: transformers, GPT2Attention; 1 / (layer + 1) is Mistral's, https://github.com/stanford-crfm/mistral.
        """
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale

    @property
    def is_moe(self) -> bool:
        """True if the feed-forward is a mixture of experts."""
        return self.feed_forward == "moe"

    @property
    def is_gated(self) -> bool:
        """True if the feed-forward, or each of its experts, is gated."""
        return (self.expert_feed_forward if self.is_moe else self.feed_forward) in GATES


KEYS = tuple(ModelConfig.model_fields)


def build_config(values: dict[str, Any], where: str) -> ModelConfig:
    """Return a valid config; raise one `ConfigError` that begins with `where` and lists every fault."""
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        faults = [
            _fault(e["type"], e["loc"], e["msg"], e.get("input"), e.get("ctx") or {}) for e in error.errors()
        ]
        raise ConfigError(f"{where}: " + "; ".join(fault for fault in faults if fault)) from None


_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
}


def _fault(
    kind: str, location: tuple[int | str, ...], message: str, value: Any, context: dict[str, Any]
) -> str:
    key = str(location[0]) if location else ""
    shown = shorten_value(value)
    match kind:
        case "extra_forbidden":
            return f"unknown key {key!r}{nearest(key, KEYS)}"
        case "missing":
            return f"missing key {key}"
        case "default_factory_not_called":
            return ""  # follows from another fault, which is listed
        case "literal_error":
            return f"{key} must be one of {context['expected']}, got {shown}"
        case "value_error":
            return str(context["error"])
        case _ if kind in _EXPECTED:
            return f"{key} must be {_EXPECTED[kind]}, got {shown}"
        case _:
            return f"{key}: {message[0].lower()}{message[1:]}, got {shown}"


def shorten_value(value: Any) -> str:
    """Return a value as a message shows it: at most 40 characters."""
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
