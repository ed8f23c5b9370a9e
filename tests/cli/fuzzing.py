"""Strategies for odd files: configs, weights and prompts that are almost right."""

import json
import struct
from typing import Any

import yaml
from hypothesis import strategies as st

from gptcli.config.model_config import KEYS
from gptcli.config.shapes import parameter_shapes
from tests.models import tiny_config, tiny_values

SMALL = {"n_layers": 1, "emb_dim": 8, "n_heads": 2, "vocab_size": 11, "context_length": 4}

# Names and texts that could drive a terminal, look like markup or a path, or break a decoder.
TEXTS = st.sampled_from([
    "", " ", "\x1b[2J\x1b]0;owned\x07", "[bold red]x[/]", "[/INST]", ":smile:", "a\nb", "a\r\b", "../../etc",
    "\x00", "\ud800", "\u202e", "𝕏" * 50, "h." * 5000, "trf_blocks.0.att.W_query.weight", "NaN", "1e-5",
]) | st.text(max_size=20)  # fmt: skip
NUMBERS = (
    st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**30, 10**400, 1e308, 1e-320, -0.0])
    | st.integers(-5, 70)
    | st.floats()
)
VALUES = st.recursive(
    NUMBERS | TEXTS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
HUGGINGFACE_KEYS = (
    "model_type", "n_embd", "n_head", "n_layer", "n_positions", "n_inner", "activation_function",
    "tie_word_embeddings", "layer_norm_epsilon", "eos_token_id", "architectures", "scale_attn_weights",
)  # fmt: skip
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp037"])

YAML_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
BOMBS = (
    YAML_BOMB, "&a [*a]", "<<: {a: 1}\n", "? [1]\n: 2", "!!python/object/apply:os.system [echo]",
    "--- 1\n--- 2", "a: " * 3000, "{" * 4000, '{"a":' * 4000, "[" * 100_000, "9" * 10_000,
    "n_layers: " + "9" * 10_000, "vocab_size: 0x" + "f" * 5000, "emb_dim: 1_0", "emb_dim: 12:30:45",
    "emb_dim: 0o17", "emb_dim: .inf", "- 1\n- 2", '{"emb_dim": 1, "emb_dim": 2}', "emb_dim: 1\nemb_dim: 2",
    "\x00" * 100, "%YAML 9.9\n---\na: 1", "a\tb:\t1", "\n" * 99,
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the ending and the bytes of a config file in which anything may be odd."""
    values: dict[str, Any] = dict(tiny_values(**SMALL))
    for key in draw(st.lists(st.sampled_from([*KEYS, *HUGGINGFACE_KEYS]) | TEXTS, max_size=4)):
        values[key] = draw(VALUES)
    for key in draw(st.lists(st.sampled_from(sorted(values, key=str)), max_size=2)):
        values.pop(key, None)
    suffix = draw(st.sampled_from([".json", ".yaml", ".yml", ".txt"]))
    if draw(st.integers(0, 9)) == 0:
        text = draw(st.sampled_from(BOMBS))
    elif suffix == ".json" or draw(st.booleans()):
        text = json.dumps(values, ensure_ascii=draw(st.booleans()))
    else:
        text = yaml.safe_dump(values)
    content = bytearray(text.encode(draw(ENCODINGS), errors="replace"))
    return suffix, bytes(draw(_damaged(content)))


@st.composite
def safetensors(draw: st.DrawFn) -> bytes:
    """Return a weights file in the tutorial's layout, with changes in its header, and maybe cut."""
    entries: list[tuple[str, Any]] = []
    at = 0
    for name, shape in parameter_shapes(tiny_config(**SMALL)).items():
        size = 4
        for side in shape:
            size *= side
        entries.append((name, {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}))
        at += size
    for i in draw(st.lists(st.integers(0, len(entries) - 1), max_size=3)):
        i = min(i, len(entries) - 1)
        name, entry = entries[i]
        entry = dict(entry) if isinstance(entry, dict) else {}
        match draw(st.integers(0, 8)):
            case 0:
                name = draw(TEXTS)
            case 1:
                entry["dtype"] = draw(
                    st.sampled_from(["F16", "BF16", "F64", "I8", "BOOL", "F8_E4M3", "F4", "f32"]) | VALUES
                )
            case 2:
                entry["shape"] = draw(st.lists(NUMBERS, max_size=4) | VALUES)
            case 3:
                entry["data_offsets"] = draw(st.lists(NUMBERS, max_size=3) | VALUES)
            case 4:
                entry["shape"] = [0, *entry.get("shape", [])]
            case 5:
                entry[draw(TEXTS)] = draw(VALUES)
            case 6:
                entry = draw(VALUES)
            case 7:
                entries.append((name, entry))  # twice
            case 8:
                del entries[i]
                continue
        entries[i] = (name, entry)
    if draw(st.booleans()):
        entries.append(("__metadata__", draw(st.dictionaries(TEXTS, TEXTS, max_size=2) | VALUES)))
    header = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries) + "}"
    text = header.encode()
    length = draw(
        st.just(len(text))
        | st.sampled_from([0, 1, 8, len(text) - 1, len(text) + 1, 2**24 + 1, 2**63, 2**64 - 1])
    )
    whole = struct.pack("<Q", length) + text + bytes(at)
    cut = draw(st.sampled_from([0, 0, 0, 1, at, len(whole) - 8, len(whole)]))
    return bytes(draw(_damaged(bytearray(whole[: len(whole) - cut]))))


@st.composite
def prompt_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the ending and the bytes of a file of prompts."""
    suffix = draw(st.sampled_from([".txt", ".jsonl", ".csv"]))
    lines = []
    for _ in range(draw(st.integers(0, 4))):
        record = {
            draw(st.sampled_from(["id", "prompt", "max_new_tokens"]) | TEXTS): draw(VALUES)
            for _ in range(draw(st.integers(0, 3)))
        }
        lines.append(draw(st.just(json.dumps(record)) | TEXTS))
    text = "\n".join(lines)
    if suffix == ".csv" and draw(st.booleans()):
        text = "id,prompt\n" + text
    return suffix, bytes(draw(_damaged(bytearray(text.encode("utf-8", errors="replace")))))


@st.composite
def _damaged(draw: st.DrawFn, content: bytearray) -> bytearray:
    """Return the data as it was, or with some bytes changed, or cut."""
    if content and draw(st.integers(0, 3)) == 0:
        for _ in range(draw(st.integers(1, 3))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        if draw(st.booleans()):
            del content[draw(st.integers(0, len(content))) :]
    return content
