"""Predictions of the next token: the top candidates, and how well the actual tokens were predicted."""

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
class TokenScore:
    """How well the model predicted an actual token: its log-probability in nats, and its rank from 1."""

    position: int
    token_id: int
    logprob: float
    rank: int


def top_candidates(logits: Tensor, k: int) -> list[Candidate]:
    """Return the k most probable tokens by logits [V]; those with equal logits come in order of their ids."""
    logits = logits.double()
    probabilities = logits.softmax(-1)  # [V]
    order = logits.sort(descending=True, stable=True).indices[:k].tolist()
    return [
        Candidate(rank, token, float(probabilities[token]), float(logits[token]))
        for rank, token in enumerate(order, start=1)
    ]


def score_tokens(logits: Tensor, ids: Sequence[int]) -> list[TokenScore]:
    """Score each of the T ids except the first, by the row of logits [T, V] for the position before it."""
    logprobs = logits.double().log_softmax(-1)  # [T, V]
    scores = []
    for position in range(1, len(ids)):
        row, token = logprobs[position - 1], ids[position]
        rank = 1 + int((row > row[token]).sum())
        scores.append(TokenScore(position, token, float(row[token]), rank))
    return scores


def perplexity(scores: Sequence[TokenScore]) -> float:
    """Return exp of the mean negative log-probability; NaN if there are no tokens."""
    if not scores:
        return math.nan
    return math.exp(-sum(score.logprob for score in scores) / len(scores))
