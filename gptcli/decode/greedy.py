"""Greedy decoding: the most probable next token, again and again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gptcli.decode.draft import Drafts
from gptcli.errors import NumericsError
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel

Array = np.ndarray[Any, np.dtype[Any]]
# Two logits this close, in parts of the largest magnitude, are a near-tie: 256 units of float32 rounding.
NEAR_TIE = 256 * torch.finfo(torch.float32).eps
# A long prompt is taken in by parts on a CPU: products are as fast, and attention need not compute what the
# mask hides: 1,000 tokens of GPT-2 small in 0.66 s instead of 0.80.
PREFILL_TOKENS = 256
# Takes the logits [V] of the next token, gives its id.
Choose = Callable[[Tensor], int]


class Engine(Protocol):
    """What may compute steps faster than the model; `gptcli.engine` has it."""

    @property
    def max_tokens(self) -> int:
        """As many tokens at once; 0 as long as it is not ready."""

    def logits(
        self, ids: Sequence[int], cache: KVCache, tokens_left: int, *, largest_only: bool
    ) -> Tensor | None:
        """Float32 logits [T, V] of `ids` behind what the cache holds, taken in; None: let the model do it.

        With `largest_only` those that are neither the largest nor a near-tie with it need not be exact.
        """


@dataclass(frozen=True)
class Step:
    """One generated token, with its natural log-probability where that was asked for."""

    token_id: int
    logprob: float | None = None


def most_probable(logits: Tensor) -> int:
    """The id of the largest logit of [V]; of several the lowest id."""
    return int(logits.argmax() if logits.is_cuda else _on_host(logits).argmax())


def is_finite(logits: Tensor) -> list[bool]:
    """Of each row of [N, V], whether all of it are numbers."""
    least, largest = _extremes(logits)
    finite: list[bool] = (np.isfinite(least) & np.isfinite(largest)).tolist()
    return finite


def is_near_tie(logits: Tensor) -> list[bool]:
    """Of each row of float32 [N, V], whether rounding could decide between its two largest.

    A step with a cache, a batch and a pass over all tokens add up the same numbers in other orders. Where
    that could matter, the whole pass decides, so the path never shows in the text. 256 units of rounding of
    the largest logit are some ten times what is seen; half precision is too coarse: many steps would count.
    """
    if logits.dtype != torch.float32:
        return [False] * len(logits)
    least, largest = _extremes(logits)
    lines = largest - NEAR_TIE * np.maximum(np.maximum(largest, -least), 1.0)  # [N]
    if logits.is_cuda:
        above = (logits >= torch.from_numpy(lines).to(logits.device)[:, None]).sum(-1).tolist()
    else:
        numbers = _on_host(logits)
        above = [np.count_nonzero(row >= line) for row, line in zip(numbers, lines, strict=True)]
    return [count > 1 for count in above]


def _extremes(logits: Tensor) -> tuple[Array, Array]:
    """Least and largest of each row of [N, V], NaN where one is: [N] each."""
    if logits.is_cuda:
        both = torch.stack([logits.amin(-1), logits.amax(-1)]).float().cpu().numpy()  # [2, N]
        return both[0], both[1]
    numbers = _on_host(logits)
    return numbers.min(-1), numbers.max(-1)


def _on_host(logits: Tensor) -> Array:
    """float32 for NumPy, whose single thread is done before PyTorch has woken its own: 2 µs, not 30."""
    numbers: Array = logits.float().numpy()
    return numbers


def decode_greedy(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    use_cache: bool = True,
    logprobs: bool = False,
    engine: Engine | None = None,
    drafts: Drafts | None = None,
) -> Iterator[Step]:
    """`decode` by the most probable token."""
    return decode(
        model,
        prompt_ids,
        max_new_tokens,
        most_probable,
        use_cache=use_cache,
        logprobs=logprobs,
        engine=engine,
        drafts=drafts,
    )


@torch.inference_mode()
def decode(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    choose: Choose,
    *,
    use_cache: bool = True,
    logprobs: bool = False,
    engine: Engine | None = None,
    drafts: Drafts | None = None,
) -> Iterator[Step]:
    """Yield `max_new_tokens` tokens that follow `prompt_ids`, one or more, each as `choose` chooses.

    With a cache or without, by the engine or without, with drafts or without, the tokens are the same (drafts
    are for the most probable alone). Past `context_length` the model sees the last `context_length` tokens.
    The caller stops earlier by not asking for more. Raises `NumericsError` when a logit is not finite.
    """
    ids = list(prompt_ids)
    end = len(ids) + max_new_tokens
    is_greedy = choose is most_probable
    cache = _cache_for(model, end) if use_cache else None
    redo_near_ties = cache is not None and is_greedy and model.tok_emb.weight.dtype == torch.float32
    while len(ids) < end:
        guesses: list[int] = []
        if engine is not None and cache is not None and drafts is not None and is_greedy:
            room = min(engine.max_tokens, cache.capacity - cache.length) - (len(ids) - cache.length)
            guesses = drafts.propose(ids, min(room, end - len(ids) - 1))
        start = len(ids)
        rows = None  # [1 + guesses, V]
        if engine is not None and cache is not None:
            new = [*ids[cache.length :], *guesses]
            rows = engine.logits(new, cache, end - len(ids), largest_only=is_greedy and not logprobs)
        rows = next_logits(model, ids, cache)[None] if rows is None else rows[-1 - len(guesses) :]
        near_ties = is_near_tie(rows) if redo_near_ties else [False] * len(rows)
        for logits, finite, near_tie, guess in zip(
            rows, is_finite(rows), near_ties, [*guesses, None], strict=True
        ):
            if not finite:
                raise not_finite(len(ids))
            if near_tie:
                logits = next_logits(model, ids, None)  # [V], from the whole pass
            yield (step := take_step(logits, choose, logprobs=logprobs))
            ids.append(step.token_id)
            if step.token_id != guess:
                break
        if drafts is not None:
            drafts.saw(ids[start:])
        if cache is not None and cache.length >= len(ids):
            cache.truncate(len(ids) - 1)  # what followed a wrong guess


def take_step(logits: Tensor, choose: Choose, *, logprobs: bool) -> Step:
    """The token that `choose` chooses from finite logits [V]."""
    token = choose(logits)
    return Step(token, float(logits.float().log_softmax(-1)[token]) if logprobs else None)


def not_finite(n_tokens: int) -> NumericsError:
    """The error of logits that are not finite after so many tokens."""
    return NumericsError(
        f"the model's logits are not finite after {n_tokens} tokens: the weights are broken, or too large for"
        " this dtype (try --dtype float32)"
    )


def next_logits(model: GPTModel, ids: Sequence[int], cache: KVCache | None) -> Tensor:
    """Logits [V] of the token after `ids`; the cache holds a beginning of `ids` and takes in the rest."""
    context = model.config.context_length
    device = model.tok_emb.weight.device
    if cache is None or len(ids) > context:
        # Behind the context every position has moved, and with it every key and value: nothing cached holds.
        hidden = model.hidden(torch.tensor([ids[-context:]], device=device))  # [1, T, C]
    else:
        new = torch.tensor([ids[cache.length :]], device=device)  # [1, T]
        for part in torch.split(new, PREFILL_TOKENS if device.type == "cpu" else context, dim=1):
            hidden = model.hidden(part, cache)  # [1, up to PREFILL_TOKENS, C]
    logits: Tensor = model.out_head(hidden[0, -1])  # [V]
    return logits


def _cache_for(model: GPTModel, n_tokens: int) -> KVCache:
    weight = model.tok_emb.weight
    return KVCache(model.config, 1, n_tokens, dtype=weight.dtype, device=weight.device)
