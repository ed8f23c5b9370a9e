"""Saving a model as a folder of weights and config that gptcli loads, and `transformers` too for a GPT-2."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from gptcli.config.huggingface import to_huggingface
from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import parameter_shapes
from gptcli.model.gpt import GPTModel
from gptcli.weights.folders import SINGLE
from gptcli.weights.layouts import HUGGINGFACE, TUTORIAL, Layout, Rule
from gptcli.weights.sidecar import update_end_tokens


def save_model(model: GPTModel, folder: Path, dtype: torch.dtype = torch.float32) -> Layout:
    """Write `model.safetensors` and `config.json` into `folder`, each whole or not at all; return the layout.

    A GPT-2 gets Hugging Face's layout, any other model the tutorial's. A tied head is written once.
    """
    config = model.config
    theirs = to_huggingface(config)
    layout = TUTORIAL if theirs is None else HUGGINGFACE
    state = model.state_dict()
    parameters = {name: state[name].detach().to("cpu", dtype) for name in parameter_shapes(config)}
    text = json.dumps(config.model_dump() if theirs is None else theirs, indent=2) + "\n"
    new_config, new_weights = folder / ".config.json.part", folder / f".{SINGLE}.part"
    new_config.write_text(text, encoding="utf-8")
    save_file(lay_out(parameters, layout, config), new_weights, metadata={"format": "pt"})
    new_weights.chmod(new_config.stat().st_mode & 0o777)  # safetensors lets only the owner read its files
    new_weights.replace(folder / SINGLE)
    new_config.replace(folder / "config.json")
    update_end_tokens(folder, config)
    return layout


def lay_out(parameters: dict[str, Tensor], layout: Layout, config: ModelConfig) -> dict[str, Tensor]:
    """Return our parameters by a layout's names and in its orientation: its rules, applied in reverse."""
    return {
        name: _join(rule, [parameters[target] for target in targets])
        for name, rule, targets in layout.written_as(parameters, config)
    }


def _join(rule: Rule, tensors: list[Tensor]) -> Tensor:
    oriented = [t.t() if t.ndim == 2 and rule.is_transposed else t for t in tensors]
    return (torch.cat(oriented, dim=rule.split_axis) if rule.is_split else oriented[0]).contiguous()
