"""A trace of one forward pass, recorded by hooks, so that the model needs no code for it."""

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
    """The insides of one forward pass of T tokens through L layers with H heads.

    residual      [T, C] after the embeddings, then after each attention and each feed-forward: 1 + 2·L
    attention     [H, T, T] for each layer; its rows sum to 1
    activations   the outputs of the activation function in each layer, of any shape: one, or one per expert
    logits        [T, V]
    """

    ids: Sequence[int]
    residual: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    activations: list[list[Tensor]] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


@torch.inference_mode()
def trace(model: GPTModel, ids: Sequence[int]) -> Trace:
    """Run `ids` (at most `context_length`) through the model and return what happened inside."""
    recorded = Trace(tuple(ids))
    with _recording(model, recorded):
        recorded.logits = model(torch.tensor([list(ids)], device=model.tok_emb.weight.device))[0]  # [T, V]
    return recorded


@torch.inference_mode()
def attention_weights(attention: MultiHeadAttention, x: Tensor, layer: int) -> Tensor:  # [B, H, T, T]
    """Return the softmax of a layer's scores for x [B, T, C], causal, which SDPA does not return."""
    q = attention.split_heads(attention.W_query(x))  # [B, H, T, D]
    k = attention.split_heads(attention.W_key(x))  # [B, H, T, D]
    scores = q @ k.transpose(-2, -1) * attention.score_scale(layer)  # [B, H, T, T]
    T = x.shape[1]
    is_later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)  # [T, T]
    return scores.masked_fill(is_later, -math.inf).float().softmax(-1)


@contextmanager
def _recording(model: GPTModel, recorded: Trace) -> Iterator[None]:
    """Fill `recorded` by hooks while the `with` block runs."""

    def after_embedding(_module: nn.Module, _inputs: tuple[Tensor, ...], x: Tensor) -> None:
        recorded.residual.append(x[0])

    def after_attention(module: nn.Module, inputs: tuple[Tensor, ...], _y: Tensor) -> None:
        assert isinstance(module, MultiHeadAttention)
        recorded.attention.append(attention_weights(module, inputs[0], len(recorded.attention))[0])

    def before_norm2(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        recorded.residual.append(inputs[0][0])

    def after_block(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> None:
        recorded.residual.append(y[0])

    def before_feed_forward(_module: nn.Module, _inputs: tuple[Tensor, ...]) -> None:
        recorded.activations.append([])

    def after_activation(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> None:
        recorded.activations[-1].append(y)

    hooks = [model.drop_emb.register_forward_hook(after_embedding)]
    for block in model.trf_blocks:
        assert isinstance(block, TransformerBlock)
        ff = block.ff
        hooks.append(block.register_forward_hook(after_block))
        hooks.append(block.att.register_forward_hook(after_attention))
        hooks.append(block.norm2.register_forward_pre_hook(before_norm2))
        hooks.append(ff.register_forward_pre_hook(before_feed_forward))
        function = "layers.1" if isinstance(ff, FeedForward) else "activation"
        hooks.append(ff.get_submodule(function).register_forward_hook(after_activation))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
