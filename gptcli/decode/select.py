"""From logits to a token: the same checks for one sequence and for a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gptcli.decode.engine import Array, Engine, Exactness, ForwardRequest
from gptcli.decode.near_ties import CheckedLogits
from gptcli.decode.sampling import Sampler
from gptcli.errors import NumericsError


@dataclass(frozen=True)
class GeneratedToken:
    """One generated token, with its natural log-probability where that was asked for."""

    token_id: int
    logprob: float | None = None


def sample_token(
    engine: Engine, ids: Sequence[int], checked: CheckedLogits, sampler: Sampler, *, logprobs: bool
) -> GeneratedToken:
    """Return the token that `sampler` takes after `ids`; a near tie is decided by a pass over all of them.

    Raises `NumericsError` for logits that are not finite.
    """
    if not checked.is_finite:
        raise NumericsError(
            f"the model's logits are not finite after {len(ids)} tokens: the weights are broken, or too large"
            " for this dtype (try --dtype float32)"
        )
    logits = checked.logits
    if checked.is_near_tie and sampler.is_greedy:
        logits = forward_whole(engine, ids, exactness_for(sampler, logprobs))[0]
    token = sampler.sample(logits)
    return GeneratedToken(token, _log_probability(logits, token) if logprobs else None)


def forward_whole(engine: Engine, ids: Sequence[int], exactness: Exactness) -> Array:
    """Return the logits [1, V] after `ids`, by one pass without a cache.

    The model sees the last `context_length` tokens: past that the window slides, every position moves, and
    with it every key and value, so nothing cached holds.
    """
    window = ids[-engine.config.context_length :]
    logits: Array = engine.forward(ForwardRequest([window], exactness=exactness))[0]
    return logits


def exactness_for(sampler: Sampler, logprobs: bool) -> Exactness:
    """Return which logits a sampler looks at."""
    if not sampler.is_greedy:
        return "all"
    return "argmax_logprob" if logprobs else "argmax"


def _log_probability(logits: Array, token: int) -> float:
    shifted = logits - logits.max()  # [V], so that no exponential overflows
    return float(shifted[token] - np.log(np.exp(shifted).sum(dtype=np.float64)))
