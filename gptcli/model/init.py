"""Ways to come by a model: random weights from a seed, or none at all, to be filled by a loader."""

import math
import re
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gptcli.config import ModelConfig
from gptcli.model.activations import Swish
from gptcli.model.gpt import GPTModel
from gptcli.model.norm import LayerNorm

# Radford et al. 2018 and 2019: weights N(0, 0.02), residual projections scaled by 1/√(2L), biases zero.
GPT2_INIT_STD = 0.02
RESIDUAL_PROJECTION = re.compile(r"\.(out_proj|layers\.2|down_proj|fc3\.\d+)$")


class _WithoutDraws(TorchFunctionMode):
    """`torch.nn.init` does nothing. On the meta device it would draw nothing either, and take 0.7 s to import
    what draws nothing there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(config: ModelConfig) -> GPTModel:
    """A model on the meta device: names and shapes, no memory, no draws."""
    with torch.device("meta"), _WithoutDraws():
        return GPTModel(config).eval()


def random_model(config: ModelConfig, seed: int) -> GPTModel:
    """Random weights in float32 on the CPU, the same for the same seed; the global generator is left alone.

    Untied, they are PyTorch's defaults drawn in the tutorial's order. Tied, they are GPT-2's own: PyTorch's
    N(0, 1) embedding would, as a head, give the token just read a logit far above all others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not config.tie_embeddings:
            return GPTModel(config).eval()
        model = empty_model(config).to_empty(device="cpu")
        model.tie_head()
        init_like_gpt2(model)
        return model


@torch.no_grad()
def init_like_gpt2(model: GPTModel) -> None:
    """Draw every weight as GPT-2 was initialised, in the order of the modules."""
    residual_std = GPT2_INIT_STD / math.sqrt(2 * model.config.n_layers)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            if module is model.out_head and model.config.tie_embeddings:
                continue  # drawn as the embedding
            std = residual_std if RESIDUAL_PROJECTION.search(name) else GPT2_INIT_STD
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, LayerNorm):
            nn.init.ones_(module.scale)
            nn.init.zeros_(module.shift)
        elif isinstance(module, Swish) and isinstance(module.beta, nn.Parameter):
            nn.init.constant_(module.beta, module.initial_beta)
