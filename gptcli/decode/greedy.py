"""Greedy decoding: the most probable next token, again and again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gptcli.errors import NumericsError
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel

# Takes the logits [V] of the next token, gives its id.
Choose = Callable[[Tensor], int]


@dataclass(frozen=True)
class Step:
    """One generated token, with its natural log-probability where that was asked for."""

    token_id: int
    logprob: float | None = None


def most_probable(logits: Tensor) -> int:
    """The id of the largest logit of [V]; of several the lowest id."""
    return int(logits.argmax())


def is_near_tie(logits: Tensor) -> Tensor:
    """Whether rounding could decide between the two largest of float32 logits: [..., V] → [...].

    A step with a cache, a batch and a pass over all tokens add up the same numbers in other orders. Where
    that could matter, the whole pass decides, so the path never shows in the text. 256 units of rounding of
    the largest logit are some ten times what is seen; half precision is too coarse: many steps would count.
    """
    if logits.dtype != torch.float32:
        return torch.zeros(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    least, largest = logits.aminmax(dim=-1, keepdim=True)  # [..., 1]
    margin = 256 * torch.finfo(logits.dtype).eps * torch.maximum(largest, -least).clamp(min=1.0)
    return (logits >= largest - margin).sum(-1) > 1


def decode_greedy(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    use_cache: bool = True,
    logprobs: bool = False,
) -> Iterator[Step]:
    """`decode` by the most probable token."""
    return decode(model, prompt_ids, max_new_tokens, most_probable, use_cache=use_cache, logprobs=logprobs)


@torch.inference_mode()
def decode(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    choose: Choose,
    *,
    use_cache: bool = True,
    logprobs: bool = False,
) -> Iterator[Step]:
    """Yield `max_new_tokens` tokens that follow `prompt_ids`, one or more, each as `choose` chooses.

    With a cache or without, the tokens are the same. Past `context_length` the model sees the last
    `context_length` tokens. The caller stops earlier by not asking for more. Raises `NumericsError` when a
    logit is not finite.
    """
    ids = list(prompt_ids)
    cache = _cache_for(model, len(ids) + max_new_tokens) if use_cache else None
    for _ in range(max_new_tokens):
        logits = next_logits(model, ids, cache)  # [V]
        if cache is not None and choose is most_probable and is_near_tie(logits):
            logits = next_logits(model, ids, None)  # [V], from the whole pass
        if not torch.isfinite(logits).all():
            raise not_finite(len(ids))
        yield (step := take_step(logits, choose, logprobs=logprobs))
        ids.append(step.token_id)


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
        hidden = model.hidden(torch.tensor([ids[cache.length :]], device=device), cache)  # [1, T, C]
    logits: Tensor = model.out_head(hidden[0, -1])  # [V]
    return logits


def _cache_for(model: GPTModel, n_tokens: int) -> KVCache:
    weight = model.tok_emb.weight
    return KVCache(model.config, 1, n_tokens, dtype=weight.dtype, device=weight.device)
