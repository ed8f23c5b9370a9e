"""What comes next: the top tokens, and how well the actual ones were predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """A possible next token; rank 1 is the most probable."""

    rank: int
    token_id: int
    probability: float
    logit: float


@dataclass(frozen=True)
class Scored:
    """An actual next token: what the model made of it before it came."""

    position: int
    token_id: int
    logprob: float
    rank: int


def top_candidates(logits: Tensor, k: int) -> list[Candidate]:
    """The k most probable tokens by logits [V]; ties in the order of their ids."""
    logits = logits.double()
    probabilities = logits.softmax(-1)  # [V]
    order = logits.sort(descending=True, stable=True).indices[:k].tolist()
    return [
        Candidate(rank, token, float(probabilities[token]), float(logits[token]))
        for rank, token in enumerate(order, start=1)
    ]


def score(logits: Tensor, ids: Sequence[int]) -> list[Scored]:
    """Each token of `ids` but the first, by the logits [T, V] of the position before it; in nats."""
    logprobs = logits.double().log_softmax(-1)  # [T, V]
    scored = []
    for position in range(1, len(ids)):
        row, token = logprobs[position - 1], ids[position]
        rank = 1 + int((row > row[token]).sum())
        scored.append(Scored(position, token, float(row[token]), rank))
    return scored


def perplexity(scored: Sequence[Scored]) -> float:
    """exp of the mean negative log-probability; NaN for no tokens."""
    if not scored:
        return math.nan
    return math.exp(-sum(token.logprob for token in scored) / len(scored))
