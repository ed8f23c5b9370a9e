"""Small models for tests: configs, checkpoints in both layouts, and models that follow a script of ids."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from gptcli.config.model_config import ModelConfig, build_config
from gptcli.config.shapes import parameter_shapes
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model


def tiny_values(**changes: Any) -> dict[str, Any]:
    """Return the seven keys of a tiny model's config, with changes."""
    values = {
        "vocab_size": 97,
        "context_length": 16,
        "emb_dim": 24,
        "n_heads": 4,
        "n_layers": 2,
        "drop_rate": 0.1,
        "qkv_bias": True,
    }
    return values | changes


def tiny_config(**changes: Any) -> ModelConfig:
    return build_config(tiny_values(**changes), "test")


def lively_model(config: ModelConfig, seed: int = 0) -> GPTModel:
    """Return a random model where every parameter matters: no bias is zero, no norm the identity."""
    model = random_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            elif config.tie_embeddings and parameter.ndim:
                parameter *= 8  # GPT-2's 0.02 leaves all logits of a small model alike
    return model


def write_yaml(path: Path, values: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(dict(values)))
    return path


def save_tutorial(model: GPTModel, folder: Path, **config_changes: Any) -> Path:
    """Save a model in the tutorial's layout, with its config.json; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_embeddings:
        del state["out_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config.model_dump() | config_changes))
    return folder


def huggingface_state(model: GPTModel) -> dict[str, torch.Tensor]:
    """Return the tensors under Hugging Face's names, written out by hand, independently of our table."""
    state: dict[str, torch.Tensor] = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        state[name] = tensor.detach().clone().contiguous()

    put("wte.weight", model.tok_emb.weight)
    put("wpe.weight", model.pos_emb.weight)
    put("ln_f.weight", model.final_norm.scale)
    put("ln_f.bias", model.final_norm.shift)
    for i, block in enumerate(model.trf_blocks):
        h, att, (up, _, down) = f"h.{i}.", block.att, block.ff.layers
        put(h + "ln_1.weight", block.norm1.scale)
        put(h + "ln_1.bias", block.norm1.shift)
        put(h + "ln_2.weight", block.norm2.scale)
        put(h + "ln_2.bias", block.norm2.shift)
        qkv = (att.W_query, att.W_key, att.W_value)
        put(h + "attn.c_attn.weight", torch.cat([linear.weight for linear in qkv]).T)
        put(h + "attn.c_attn.bias", torch.cat([linear.bias for linear in qkv]))
        for name, linear in (("attn.c_proj", att.out_proj), ("mlp.c_fc", up), ("mlp.c_proj", down)):
            put(h + name + ".weight", linear.weight.T)
            put(h + name + ".bias", linear.bias)
    if not model.config.tie_embeddings:
        put("lm_head.weight", model.out_head.weight)
    return state


def huggingface_config(config: ModelConfig, **changes: Any) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.emb_dim,
        "n_head": config.n_heads,
        "n_layer": config.n_layers,
        "n_inner": config.ffn_dim,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": config.eos_token_id,
    } | changes


def save_huggingface(model: GPTModel, folder: Path, *, config: bool = True, **config_changes: Any) -> Path:
    """Save a model in Hugging Face's layout; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(huggingface_state(model), folder / "model.safetensors", metadata={"format": "pt"})
    if config:
        (folder / "config.json").write_text(json.dumps(huggingface_config(model.config, **config_changes)))
    return folder


def peak_bytes() -> int:
    """Return this process's peak memory (Linux). `getrusage` would include that of its parent."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def scripted_model(script: Mapping[int, int], **changes: Any) -> GPTModel:
    """Return a model with GPT-2's vocabulary in which `script[a]` follows token a, for every a in the script.

    All attention and feed-forward weights are zero, so the residual is the token's embedding; the
    embedding of a and the head's row of `script[a]` share one axis.
    """
    values = {"vocab_size": 50257, "context_length": 64, "n_heads": 1, "n_layers": 1, "tie_embeddings": False}
    config = tiny_config(**(values | {"emb_dim": max(8, 2 * len(script))} | changes))
    model = random_model(config, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.final_norm.scale.fill_(1)
        for axis, (token, following) in enumerate(script.items()):
            model.tok_emb.weight[token, axis] = 1
            model.out_head.weight[following, axis] += 1
    return model


def sparse_safetensors(path: Path, config: ModelConfig) -> Path:
    """Write all parameters in the tutorial's layout, float32 zeros, to a file that takes no space on disk."""
    header, at = {}, 0
    for name, shape in parameter_shapes(config).items():
        end = at + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return path
