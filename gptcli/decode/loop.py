"""The decode loop for one prompt: token by token, or several draft tokens verified at once."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gptcli.decode.engine import Cache, Engine, ForwardRequest
from gptcli.decode.near_ties import check_logits
from gptcli.decode.sampling import GREEDY, Sampler
from gptcli.decode.select import GeneratedToken, exactness_for, forward_whole, sample_token
from gptcli.decode.speculation import Speculator

if TYPE_CHECKING:  # not imported without processors, so that the program starts fast
    from gptcli.decode.processors import LogitsProcessors


def decode(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampler: Sampler = GREEDY,
    processors: "LogitsProcessors | None" = None,
    *,
    use_cache: bool = True,
    logprobs: bool = False,
    speculator: Speculator | None = None,
) -> Iterator[GeneratedToken]:
    """Yield the `max_new_tokens` tokens that `sampler` chooses after `prompt_ids`.

    In float32 the tokens are the same on every engine, with and without a cache or a speculator. A speculator
    is used only for greedy decoding. The processors change the logits before a token is chosen. Past
    `context_length` the model sees the last `context_length` tokens. Raises `NumericsError` if a logit is not
    finite, or if the processors ban every token.
    """
    ids = list(prompt_ids)
    end = len(ids) + max_new_tokens
    exactness = exactness_for(sampler, processors, logprobs=logprobs)
    cache = engine.new_cache(1, end) if use_cache else None
    if not sampler.is_greedy:
        speculator = None
    while len(ids) < end:
        draft: list[int] = []
        if cache is not None and len(ids) <= engine.config.context_length:
            if speculator is not None:
                draft = _draft(engine, speculator, ids, cache, end - len(ids))
            new = [*ids[cache.length :], *draft]
            request = ForwardRequest([new], cache, 0, [1 + len(draft)], exactness, end - len(ids))
            logits = engine.forward(request)  # [1 + len(draft), V]
            if speculator is not None and engine.max_tokens:
                speculator.record_step(len(new))
        else:
            logits = forward_whole(engine, ids, exactness)  # [1, V]
            speculator = cache = None  # the window slides from here on
        n_before = len(ids)
        for row, drafted in zip(check_logits(logits, engine.near_tie_tolerance), [*draft, None], strict=True):
            token = sample_token(engine, ids, row, sampler, processors, logprobs=logprobs, cache=cache)
            yield token
            ids.append(token.token_id)
            if token.token_id != drafted:
                break  # the logits after a wrong draft token are worthless
        if speculator is not None:
            speculator.observe_accepted(ids[n_before:])
        if cache is not None and cache.length >= len(ids):
            cache.truncate(len(ids) - 1)


def _draft(
    engine: Engine, speculator: Speculator, ids: Sequence[int], cache: Cache, tokens_left: int
) -> list[int]:
    """Return draft tokens to verify in the next forward pass, after the tokens that the cache lacks."""
    n_pending = len(ids) - cache.length
    n_most = min(engine.max_tokens - n_pending, cache.capacity - len(ids), tokens_left - 1)
    return speculator.propose(ids, n_most, cache, tokens_left)
