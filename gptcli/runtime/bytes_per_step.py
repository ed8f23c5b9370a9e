"""The bytes of a model's weights, and of those that decoding one token reads."""

import re
from collections.abc import Mapping

from gptcli.config.model_config import ModelConfig

EXPERT = re.compile(r"\.ff\.fc[123]\.\d+\.")


def count_bytes(config: ModelConfig, n_bytes: Mapping[str, int]) -> tuple[int, int]:
    """Return the bytes of all weights, and of those that decoding one token reads; given those of each name.

    A step reads no embedding, unless it is the head too, and of a mixture the experts of one token.
    """
    weight_bytes = sum(n_bytes.values())
    looked_up = ["pos_emb.weight", *(["tok_emb.weight"] if "out_head.weight" in n_bytes else [])]
    unread = sum(n_bytes[name] for name in looked_up)
    if config.is_moe:
        experts = sum(size for name, size in n_bytes.items() if EXPERT.search(name))
        unread += experts * (config.n_experts - config.n_experts_per_token) // config.n_experts
    return weight_bytes, weight_bytes - unread
