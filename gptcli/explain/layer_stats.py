"""Statistics of every sub-layer: what the residual stream, the attention and the activations look like."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gptcli.explain.trace import Trace


@dataclass(frozen=True)
class LayerRow:
    """The residual stream after one sub-layer, over all T tokens and C channels.

    `norm` is the mean Euclidean length of a token's vector. `share_not_positive` is the share of the
    feed-forward's activations at or below zero (for ReLU: the dead ones). `head_entropies` are nats, the mean
    over positions: 0 looks at one token, log t at all of t alike.
    """

    name: str
    mean: float
    std: float
    largest: float
    norm: float
    share_not_positive: float | None = None
    head_entropies: tuple[float, ...] | None = None


def layer_rows(trace: Trace) -> list[LayerRow]:
    """One row after the embeddings, then two a layer: after attention and after the feed-forward."""
    rows = [_row("embedding", trace.residual[0])]
    for layer, (attention, activated) in enumerate(zip(trace.attention, trace.activated, strict=True)):
        after_attention, after_ff = trace.residual[1 + 2 * layer : 3 + 2 * layer]
        rows.append(_row(f"block {layer} attention", after_attention, entropies=_entropies(attention)))
        rows.append(_row(f"block {layer} feed-forward", after_ff, share=_share_not_positive(activated)))
    return rows


def _row(
    name: str, x: Tensor, *, share: float | None = None, entropies: tuple[float, ...] | None = None
) -> LayerRow:
    x = x.double()  # [T, C]
    norm = x.norm(dim=-1).mean()
    return LayerRow(
        name, float(x.mean()), float(x.std(correction=0)), float(x.abs().max()), float(norm), share, entropies
    )


def _entropies(attention: Tensor) -> tuple[float, ...]:  # [H, T, T]
    entropy = torch.special.entr(attention.double()).sum(-1)  # [H, T]
    return tuple(entropy.mean(-1).tolist())


def _share_not_positive(activated: Sequence[Tensor]) -> float:
    total = sum(part.numel() for part in activated)
    return sum(int((part <= 0).sum()) for part in activated) / total
