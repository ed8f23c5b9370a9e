"""Selection of a token from its logits, for one sequence and for a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gptcli.decode.engine import Array, Cache, Engine, Exactness, ForwardRequest
from gptcli.decode.near_ties import CheckedLogits, first_largest, is_near_tie
from gptcli.decode.sampling import Sampler
from gptcli.errors import NumericsError, count

if TYPE_CHECKING:  # not imported without processors, so that the program starts fast
    from gptcli.decode.processors import LogitsProcessors


@dataclass(frozen=True)
class GeneratedToken:
    """A generated token, with its natural log-probability if that was asked for.

    The log-probability is the model's, before any logits processor and temperature.
    """

    token_id: int
    logprob: float | None = None


def sample_token(
    engine: Engine,
    ids: Sequence[int],
    checked: CheckedLogits,
    sampler: Sampler,
    processors: "LogitsProcessors | None" = None,
    *,
    logprobs: bool,
    cache: Cache | None = None,
    row: int = 0,
) -> GeneratedToken:
    """Return the token that `sampler` chooses after `ids` from the logits that the processors have changed.

    Float64 decides a near tie of a greedy one. `row` of the cache holds the sequence, if there is a cache.
    Raises `NumericsError` for logits that are not finite, and if every token is banned.
    """
    if not checked.is_finite:
        raise not_finite_error(len(ids))
    logits = checked.logits
    changed = logits if processors is None else processors(ids, logits)
    rounding = checked.rounding if processors is None else checked.rounding * processors.gain
    if sampler.is_greedy and is_near_tie(changed, rounding):
        logits = engine.exact_logits(ids[-engine.config.context_length :], cache, row)
        token = first_largest(logits if processors is None else processors(ids, logits))
    else:
        token = sampler.sample(changed)
    return GeneratedToken(token, _log_probability(logits, token) if logprobs else None)


def not_finite_error(n_tokens: int) -> NumericsError:
    """Return the error for logits after `n_tokens` that are not finite."""
    return NumericsError(
        f"the model's logits are not finite after {count(n_tokens, 'token')}: the weights are broken,"
        " or too large for this dtype (try --dtype float32)"
    )


def forward_whole(engine: Engine, ids: Sequence[int], exactness: Exactness) -> Array:
    """Return the logits [1, V] after `ids`, by one pass without a cache.

    The model sees the last `context_length` tokens. When that window slides, every token gets a new position,
    so no cached key or value is valid.
    """
    window = ids[-engine.config.context_length :]
    return engine.forward(ForwardRequest([window], exactness=exactness))


def exactness_for(
    sampler: Sampler, processors: "LogitsProcessors | None" = None, *, logprobs: bool
) -> Exactness:
    """Return which logits a sampler and the processors before it need."""
    if processors is not None or not sampler.is_greedy:
        return "all"
    return "argmax_logprob" if logprobs else "argmax"


def _log_probability(logits: Array, token: int) -> float:
    shifted = logits - logits.max()  # [V], so that no exponential overflows
    return float(shifted[token] - np.log(np.exp(shifted).sum(dtype=np.float64)))
