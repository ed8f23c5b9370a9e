"""Whether tokenizer files hold GPT-2's own tokenizer, which tiktoken serves, or another."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from gptcli.config.choices import GPT2_END_OF_TEXT
from gptcli.tokenizer.gpt2 import END_OF_TEXT
from gptcli.tokenizer.settings import TokenizerSettings

# SHA-256 of OpenAI's 50,256 tokens in the order of their ids, and of the 50,000 merges, each in its line.
TOKENS_HASH = "3a1f1c010d179f036be1992bc14b861e326341438633869c694dc4dccfe153d3"
MERGES_HASH = "04e3597d7996f292ca9b8b7285ca4d58a6ae171ac47d73fc7140ceb0c7a6bbc0"
N_MERGES = 50_000
# What a key of tokenizer.json may be in GPT-2's, beside its absence.
MODEL = {
    "type": "BPE",
    "dropout": 0,
    "unk_token": END_OF_TEXT,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def is_gpt2_json(spec: Mapping[str, Any], settings: TokenizerSettings) -> bool:
    """Return whether a `tokenizer.json` with its settings gives the ids of GPT-2's own tokenizer."""
    model = dict(spec["model"])
    vocab, merges = model.pop("vocab", None), model.pop("merges", None)
    tokens = spec.get("added_tokens")
    return (
        all(model[key] in (None, wanted) for key, wanted in MODEL.items() if key in model)
        and model.keys() <= MODEL.keys()
        and spec.get("normalizer") is None
        and _has(spec.get("pre_tokenizer"), BYTE_LEVEL)
        and _has(spec.get("decoder"), {"type": "ByteLevel"})
        and _adds_nothing(spec.get("post_processor"))
        and isinstance(tokens, list)
        and [(token.get("id"), token.get("content")) for token in tokens] == [(GPT2_END_OF_TEXT, END_OF_TEXT)]
        and tokens[0].get("special") is True
        and not any(tokens[0].get(flag) for flag in ("lstrip", "rstrip", "single_word"))
        and is_gpt2_pair(vocab, merges, settings)
    )


def is_gpt2_pair(vocab: Any, merges: Any, settings: TokenizerSettings) -> bool:
    """Return whether a vocabulary and merges with their settings are GPT-2's own."""
    adds = [token for token in settings.added if token.content != END_OF_TEXT or any(token.flags.values())]
    if any(not token.flags.keys() - {"normalized"} or token.content != END_OF_TEXT for token in adds):
        return False
    if settings.adds_prefix_space or settings.adds_begin or not isinstance(vocab, dict):
        return False
    ids = dict(vocab)
    if ids.pop(END_OF_TEXT, GPT2_END_OF_TEXT) != GPT2_END_OF_TEXT or len(ids) != GPT2_END_OF_TEXT:
        return False
    if not isinstance(merges, list) or len(merges) != N_MERGES:
        return False
    if list(ids.values()) != list(range(GPT2_END_OF_TEXT)):
        ids = dict(sorted(ids.items(), key=lambda item: item[1]))
    lines = merges if isinstance(merges[0], str) else [" ".join(pair) for pair in merges]
    return (
        list(ids.values()) == list(range(GPT2_END_OF_TEXT))
        and _hash(ids) == TOKENS_HASH
        and _hash(lines) == MERGES_HASH
    )


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()


def _has(part: Any, wanted: Mapping[str, Any]) -> bool:
    """Return whether a part of `tokenizer.json` has these values; what it does not say is as wanted."""
    return isinstance(part, dict) and all(part.get(key, value) == value for key, value in wanted.items())


def _adds_nothing(part: Any) -> bool:
    """Return whether a post-processor adds no tokens to a text."""
    if part is None or _has(part, {"type": "ByteLevel"}):
        return True
    single = part.get("single") if _has(part, {"type": "TemplateProcessing"}) else None
    return isinstance(single, list) and all("Sequence" in item for item in single)
