"""The loss of a model on a text, in nats per token and in bits per byte, which needs no common vocabulary."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from gptcli.train.data import TokenIds


@dataclass(frozen=True)
class Evaluation:
    """Mean negative log-likelihood of every token of a text except the first."""

    nats_per_token: float
    bits_per_byte: float


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    ids: TokenIds,
    n_bytes: int,
    *,
    max_length: int,
    stride: int,
    batch_size: int = 16,
) -> Evaluation:
    """Score every token once, in windows of `max_length` that advance by `stride`.

    With a stride below `max_length` a window scores only its last `stride` tokens, so that each has at least
    max_length - stride tokens before it. The first token has none before it and is not scored. `n_bytes` is
    the length of the text that `ids` encode.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = 0.0
    spans = _spans(len(ids), max_length, stride)
    for first in range(0, len(spans), batch_size):
        batch = spans[first : first + batch_size]
        rows = [torch.tensor(ids[start : end + 1].astype("int64")) for start, end, _ in batch]
        windows = torch.stack(rows).to(device)  # [B, T + 1]
        logits = model(windows[:, :-1]).transpose(1, 2)  # [B, V, T]
        losses = F.cross_entropy(logits, windows[:, 1:], reduction="none")  # [B, T]
        for row, (_, _, scored) in zip(losses, batch, strict=True):
            total += row[-scored:].sum(dtype=torch.float64).item()
    model.train(was_training)
    count = len(ids) - 1
    return Evaluation(total / count, total / math.log(2) / n_bytes)


def _spans(n_ids: int, max_length: int, stride: int) -> list[tuple[int, int, int]]:
    """Return windows (start, end, scored) of equal length: inputs start … end - 1, last targets scored."""
    spans, done = [], 0
    while done < n_ids - 1:
        end = min(n_ids - 1, max_length if done == 0 else done + stride)
        spans.append((max(0, end - max_length), end, end - done))
        done = end
    return spans
