"""One forward pass with everything inside it kept; by hooks, so the model itself knows nothing of it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gptcli.model.attention import MultiHeadAttention
from gptcli.model.feedforward import FeedForward
from gptcli.model.gpt import GPTModel, TransformerBlock


@dataclass
class Trace:
    """What one sequence of T tokens did inside a model of L layers and H heads.

    residual    [T, C] after the embeddings, then after each attention and each feed-forward: 1 + 2·L of them
    attention   [H, T, T] of each layer, rows sum to 1
    activated   what the activation function gave in each layer, any shape (in a mixture, of all its experts)
    logits      [T, V]
    """

    ids: Sequence[int]
    residual: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    activated: list[list[Tensor]] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


@torch.inference_mode()
def trace(model: GPTModel, ids: Sequence[int]) -> Trace:
    """Run `ids` (at most `context_length`) through the model and keep what happens inside."""
    found = Trace(tuple(ids))
    with _hooked(model, found):
        found.logits = model(torch.tensor([list(ids)], device=model.tok_emb.weight.device))[0]  # [T, V]
    return found


@torch.inference_mode()
def attention_weights(attention: MultiHeadAttention, x: Tensor) -> Tensor:  # [B, T, C]
    """softmax(Q·Kᵀ/√D) under the causal mask, which SDPA computes but does not show: [B, H, T, T]."""
    q, k = (
        attention.split_heads(attention.W_query(x)),
        attention.split_heads(attention.W_key(x)),
    )  # [B, H, T, D]
    scores = q @ k.transpose(-2, -1) / math.sqrt(attention.head_dim)  # [B, H, T, T]
    T = x.shape[1]
    hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)  # what comes later
    return scores.masked_fill(hidden, -math.inf).float().softmax(-1)


@contextmanager
def _hooked(model: GPTModel, found: Trace) -> Iterator[None]:
    """The hooks that fill `found`, for as long as the block runs."""

    def embedded(_module: nn.Module, _inputs: tuple[Tensor, ...], x: Tensor) -> None:
        found.residual.append(x[0])

    def attended(module: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        assert isinstance(module, MultiHeadAttention)
        found.attention.append(attention_weights(module, inputs[0])[0])
        found.residual.append(found.residual[-1] + y[0])

    def fed(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> None:
        found.residual.append(found.residual[-1] + y[0])

    def begun(_module: nn.Module, _inputs: tuple[Tensor, ...]) -> None:
        found.activated.append([])

    def activated(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> None:
        found.activated[-1].append(y)

    hooks = [model.drop_emb.register_forward_hook(embedded)]
    for block in model.trf_blocks:
        assert isinstance(block, TransformerBlock)
        ff = block.ff
        hooks.append(block.att.register_forward_hook(attended))
        hooks.append(ff.register_forward_pre_hook(begun))
        hooks.append(ff.register_forward_hook(fed))
        function = "layers.1" if isinstance(ff, FeedForward) else "activation"
        hooks.append(ff.get_submodule(function).register_forward_hook(activated))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
