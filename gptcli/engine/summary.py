"""A summary of logits in seven numbers, all that greedy decoding needs, so the logits stay on their device.

A summary holds the two largest logits and the smallest, with their ids, and one sum of exponentials for all
others. `restore` sets the others to the logarithm of their mean exponential. So the largest logit, a near tie
with it, NaN or infinity, and the log-probability of the largest are those of the original logits.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NUMBERS = 7  # three logits, their ids, and the logarithm of the sum of the others' exponentials


def summarize(logits: Tensor) -> Tensor:  # [..., 7]
    """Return summaries of logits [..., V], V at least 3; in float64, which holds every id exactly."""
    logits = logits.float()
    ids = torch.cat([logits.topk(2).indices, logits.argmin(-1, keepdim=True)], dim=-1)  # [..., 3]
    rest = logits.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)  # [..., 1]
    # A NaN is among the two largest, or makes the sum NaN; so does an infinity, or it is the least.
    return torch.cat([logits.gather(-1, ids), ids, rest], dim=-1).double()  # [..., 7]


def restore(summaries: Sequence[Tensor], spans: Sequence[range]) -> Tensor:  # [..., V]
    """Return float32 logits from the summaries [..., 7] of consecutive `spans` of the vocabulary."""
    vocab_size = spans[-1].stop
    n_rest = max(1, vocab_size - 3 * len(spans))
    mean = torch.stack([summary[..., 6] for summary in summaries]).logsumexp(0) - math.log(n_rest)  # [...]
    logits = mean.float().unsqueeze(-1).repeat_interleave(vocab_size, dim=-1)  # [..., V]
    for summary, span in zip(summaries, spans, strict=True):
        logits.scatter_(-1, summary[..., 3:6].long() + span.start, summary[..., :3].float())
    return logits
