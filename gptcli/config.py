"""What a model is: the keys of a config, their types, ranges and defaults."""

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gptcli.errors import ConfigError

Activation = Literal["gelu_tanh", "gelu", "relu"]
# gpt2-first-ranks: GPT-2's byte pairs up to rank vocab_size - 2, and <|endoftext|> as the last id. The ids
# are GPT-2's own, and every text still has some: the first 256 ranks are the bytes.
TokenizerName = Literal["gpt2", "gpt2-first-ranks"]

# Anything larger overflows the 32-bit sizes of the kernels below us; no published model comes near.
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 10_000

GPT2_END_OF_TEXT = 50256


def _default_ffn_dim(values: dict[str, Any]) -> int:
    return 4 * int(values["emb_dim"])


def _default_eos_token_id(values: dict[str, Any]) -> int | None:
    if values["tokenizer"] == "gpt2-first-ranks":
        return int(values["vocab_size"]) - 1
    return GPT2_END_OF_TEXT if values["vocab_size"] > GPT2_END_OF_TEXT else None


class ModelConfig(BaseModel):
    """The shape and arithmetic of one GPT; immutable, and valid once it exists.

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
    feed_forward: Literal["mlp"] = "mlp"
    activation: Activation = "gelu_tanh"
    ffn_dim: int = Field(default_factory=_default_ffn_dim, ge=1, le=MAX_SIZE)
    ffn_bias: bool = True
    tokenizer: TokenizerName = "gpt2"
    eos_token_id: int | None = Field(default_factory=_default_eos_token_id, ge=0)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> "ModelConfig":
        if self.emb_dim % self.n_heads:
            raise ValueError(
                f"n_heads must divide emb_dim: {self.emb_dim} / {self.n_heads} is not a whole number"
            )
        if self.norm_unbiased and self.emb_dim == 1:
            raise ValueError("norm_unbiased needs an emb_dim of 2 or more: it divides by emb_dim - 1")
        if self.tokenizer == "gpt2-first-ranks" and not 257 <= self.vocab_size <= GPT2_END_OF_TEXT + 1:
            raise ValueError(
                f"tokenizer gpt2-first-ranks needs a vocab_size from 257 to {GPT2_END_OF_TEXT + 1},"
                f" got {self.vocab_size}"
            )
        if self.eos_token_id is not None and self.eos_token_id >= self.vocab_size:
            raise ValueError(
                f"eos_token_id must be below vocab_size ({self.vocab_size}), got {self.eos_token_id}"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Width of one attention head, D."""
        return self.emb_dim // self.n_heads


KEYS = tuple(ModelConfig.model_fields)


def build_config(values: dict[str, Any], where: str) -> ModelConfig:
    """Validate `values`; raise one `ConfigError` that lists every fault and starts with `where`."""
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        faults = [
            _fault(e["type"], e["loc"], e["msg"], e.get("input"), e.get("ctx") or {}) for e in error.errors()
        ]
        raise ConfigError(f"{where}: " + "; ".join(fault for fault in faults if fault)) from None


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """A hint ` (did you mean X?)` with the known word nearest to `word`, or nothing."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


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
    shown = repr(value)
    if len(shown) > 40:
        shown = shown[:37] + "..."
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
