"""How well a model predicts a text: nats a token, and bits a byte, which no vocabulary can flatter."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from gptcli.train.data import TokenIds


@dataclass(frozen=True)
class Evaluation:
    """Mean negative log-likelihood of every token of a text but the first."""

    nats_per_token: float
    bits_per_byte: float
    n_tokens: int


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
    """Predict every token once, in windows of `max_length` that advance by `stride`.

    With a stride below `max_length` a window scores its last `stride` tokens alone, so that each has at least
    max_length - stride tokens before it. `n_bytes` is the length of the text behind `ids`. The first token
    has nothing before it and is not scored.
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
    return Evaluation(total / count, total / math.log(2) / n_bytes, count)


def _spans(n_ids: int, max_length: int, stride: int) -> list[tuple[int, int, int]]:
    """(start, end, scored): inputs start … end - 1, whose last `scored` targets are new; of one length."""
    spans, done = [], 0
    while done < n_ids - 1:
        end = min(n_ids - 1, max_length if done == 0 else done + stride)
        spans.append((max(0, end - max_length), end, end - done))
        done = end
    return spans
