"""Predictions of the next token: the top candidates."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """A possible next token; rank 1 is the most probable."""

    rank: int
    token_id: int
    probability: float
    logit: float


def top_candidates(logits: Tensor, k: int) -> list[Candidate]:
    """Return the k most probable tokens by logits [V]; those with equal logits come in order of their ids."""
    logits = logits.double()
    probabilities = logits.softmax(-1)  # [V]
    order = logits.sort(descending=True, stable=True).indices[:k].tolist()
    return [
        Candidate(rank, token, float(probabilities[token]), float(logits[token]))
        for rank, token in enumerate(order, start=1)
    ]
