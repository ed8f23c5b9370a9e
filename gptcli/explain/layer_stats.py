"""Statistics of every sub-layer: of the residual stream, the attention and the activations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gptcli.explain.trace import Trace


@dataclass(frozen=True)
class LayerStats:
    """Statistics of the residual stream after one sub-layer, over all T tokens and C channels.

    `norm` is the mean Euclidean length of a token's vector. `share_not_positive` is the fraction of the
    feed-forward's activations that are zero or less (for ReLU: the dead ones). `head_entropies` are means
    over the positions, in nats: 0 if the head attends to one token, log t if it attends to all t equally.
    """

    name: str
    mean: float
    std: float
    largest: float
    norm: float
    share_not_positive: float | None = None
    head_entropies: tuple[float, ...] | None = None


def layer_stats(trace: Trace) -> list[LayerStats]:
    """Return the statistics after the embeddings, then after the attention and feed-forward of each layer."""
    rows = [_stats("embedding", trace.residual[0])]
    for layer, (attention, activations) in enumerate(zip(trace.attention, trace.activations, strict=True)):
        after_attention, after_ff = trace.residual[1 + 2 * layer : 3 + 2 * layer]
        rows.append(_stats(f"block {layer} attention", after_attention, entropies=_entropies(attention)))
        rows.append(_stats(f"block {layer} feed-forward", after_ff, share=_share_not_positive(activations)))
    return rows


def _stats(
    name: str, x: Tensor, *, share: float | None = None, entropies: tuple[float, ...] | None = None
) -> LayerStats:
    x = x.double()  # [T, C]
    norm = x.norm(dim=-1).mean()
    return LayerStats(
        name, float(x.mean()), float(x.std(correction=0)), float(x.abs().max()), float(norm), share, entropies
    )


def _entropies(attention: Tensor) -> tuple[float, ...]:
    """Return the mean entropy of each head of attention weights [H, T, T]."""
    entropy = torch.special.entr(attention.double()).sum(-1)  # [H, T]
    return tuple(entropy.mean(-1).tolist())


def _share_not_positive(activations: Sequence[Tensor]) -> float:
    total = sum(x.numel() for x in activations)
    return sum(int((x <= 0).sum()) for x in activations) / total
