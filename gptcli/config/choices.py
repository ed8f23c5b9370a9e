"""The names that a config may use, in a module without validation, so that help texts load fast."""

import difflib
from typing import Literal

ExpertKind = Literal["mlp", "glu", "bilinear", "reglu", "geglu", "swiglu"]
FeedForwardKind = Literal["mlp", "glu", "bilinear", "reglu", "geglu", "swiglu", "moe"]
# The gate's activation of each gated kind. GLU: Dauphin et al. 2017; the others: Shazeer 2020, section 2.
GATES = {"glu": "sigmoid", "bilinear": "identity", "reglu": "relu", "geglu": "gelu", "swiglu": "silu"}

# gpt2-first-ranks: GPT-2's byte pairs up to rank vocab_size - 2, and <|endoftext|> as the last id. Their ids
# are GPT-2's own, and they can encode every text: the first 256 ranks are the bytes.
TokenizerName = Literal["gpt2", "gpt2-first-ranks"]
GPT2_END_OF_TEXT = 50256


def nearest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """Return ` (did you mean X?)` with the known word most like `word`, or an empty text if none is."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""
