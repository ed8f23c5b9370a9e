"""What things are called in a config; apart from it, so that help texts need no validation."""

import difflib
from typing import Literal

Activation = Literal[
    "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh", "silu", "swish", "identity"
]
# Names that config files in the wild use; gelu_fast is the tanh form in another order of operations.
ACTIVATION_ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
}

ExpertKind = Literal["mlp", "glu", "bilinear", "reglu", "geglu", "swiglu"]
FeedForwardKind = Literal["mlp", "glu", "bilinear", "reglu", "geglu", "swiglu", "moe"]
# The gate's activation of each gated kind. GLU: Dauphin et al. 2017; the others: Shazeer 2020, section 2.
GATES = {"glu": "sigmoid", "bilinear": "identity", "reglu": "relu", "geglu": "gelu", "swiglu": "silu"}

# gpt2-first-ranks: GPT-2's byte pairs up to rank vocab_size - 2, and <|endoftext|> as the last id. The ids
# are GPT-2's own, and every text still has some: the first 256 ranks are the bytes.
TokenizerName = Literal["gpt2", "gpt2-first-ranks"]
GPT2_END_OF_TEXT = 50256


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """A hint ` (did you mean X?)` with the known word nearest to `word`, or nothing."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
