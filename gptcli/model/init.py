"""New models: with random weights from a seed, or without any, to be filled by a loader."""

import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gptcli.config.model_config import ModelConfig
from gptcli.model.activations import Swish
from gptcli.model.gpt import GPTModel
from gptcli.model.norm import LayerNorm

# Radford et al. 2018 and 2019: weights N(0, 0.02), residual projections scaled by 1/√(2L), biases zero.
GPT2_INIT_STD = 0.02
Model = TypeVar("Model", bound=GPTModel)
RESIDUAL_PROJECTION = re.compile(r"\.(out_proj|layers\.2|down_proj|fc3\.\d+)$")


class _SkipInitialization(TorchFunctionMode):
    """Within this mode `torch.nn.init` does nothing.

    On the meta device it would draw nothing either, but take 0.7 s to import the code that draws nothing.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(config: ModelConfig) -> GPTModel:
    """Return a model on the meta device: it has names and shapes, takes no memory and draws nothing."""
    return empty(GPTModel, config)


def empty(kind: type[Model], config: ModelConfig) -> Model:
    """Return an empty model of a given class."""
    with torch.device("meta"), _SkipInitialization():
        return kind(config).eval()


def random_model(config: ModelConfig, seed: int) -> GPTModel:
    """Return a model with random float32 weights on the CPU, which depend on the seed alone.

    PyTorch's global generator keeps its state.
    """
    model = empty_model(config)
    model.load_state_dict(dict(random_tensors(config, seed)), strict=False, assign=True)
    model.tie_head()
    return model


def random_tensors(config: ModelConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `random_model` one by one, so that no process needs to hold all of them.

    An untied model gets PyTorch's defaults, drawn in the tutorial's order. A tied one gets GPT-2's own
    initialization: as a head, PyTorch's N(0, 1) embedding would give the token just read a logit far above
    all others.
    """
    generator_state = torch.Generator().manual_seed(seed).get_state()
    model = empty_model(config)
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        if not parameters or (module is model.out_head and config.tie_embeddings):
            continue
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(generator_state)
            module.to_empty(device="cpu", recurse=False)
            _draw(name, module, config)
            generator_state = torch.get_rng_state()
        for parameter in parameters:
            yield f"{name}.{parameter}", module.get_parameter(parameter).detach()
        module.to_empty(device="meta", recurse=False)


@torch.no_grad()
def _draw(name: str, module: nn.Module, config: ModelConfig) -> None:
    if isinstance(module, LayerNorm):
        nn.init.ones_(module.scale)
        if module.shift is not None:
            nn.init.zeros_(module.shift)
    elif isinstance(module, Swish):
        nn.init.constant_(module.get_parameter("beta"), module.initial_beta)
    elif isinstance(module, (nn.Linear, nn.Embedding)) and config.tie_embeddings:
        residual_std = GPT2_INIT_STD / math.sqrt(2 * config.n_layers)
        std = residual_std if RESIDUAL_PROJECTION.search(name) else GPT2_INIT_STD
        nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.Linear, nn.Embedding)):
        module.reset_parameters()
