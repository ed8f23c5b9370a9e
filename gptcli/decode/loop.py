"""Greedy decoding: the most probable next token, again and again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gptcli.decode.near_ties import is_finite, is_near_tie, on_host
from gptcli.decode.speculation import Drafts
from gptcli.errors import NumericsError
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel

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
        self,
        ids: Sequence[int],
        cache: KVCache,
        tokens_left: int,
        *,
        greedy: bool,
        logprobs: bool,
        last: int | None = None,
    ) -> Tensor | None:
        """Float32 logits [T, V] of `ids` behind what the cache holds, taken in; None: let the model do it.

        Only the `last` of them are looked at, if that is given, and there may be no more.
        Where `greedy` alone looks at them, those that are neither the largest nor a near-tie with it need not
        be exact, but for the sum of their exponentials with `logprobs`.
        """


@dataclass(frozen=True)
class Step:
    """One generated token, with its natural log-probability where that was asked for."""

    token_id: int
    logprob: float | None = None


def most_probable(logits: Tensor) -> int:
    """The id of the largest logit of [V]; of several the lowest id."""
    return int(logits.argmax() if logits.is_cuda else on_host(logits).argmax())


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
    cache = KVCache.of(model, 1, end) if use_cache else None
    redo_near_ties = cache is not None and is_greedy and model.tok_emb.weight.dtype == torch.float32
    while len(ids) < end:
        guesses: list[int] = []
        if engine is not None and cache is not None and drafts is not None and is_greedy:
            room = min(engine.max_tokens, cache.capacity - cache.length) - (len(ids) - cache.length)
            tokens_left = end - len(ids)
            guesses = drafts.propose(ids, min(room, tokens_left - 1), cache, tokens_left)
        start = len(ids)
        rows = None  # [1 + guesses, V]
        if engine is not None and cache is not None:
            new = [*ids[cache.length :], *guesses]
            rows = engine.logits(
                new, cache, end - len(ids), greedy=is_greedy, logprobs=logprobs, last=1 + len(guesses)
            )
            if drafts is not None and rows is not None:
                drafts.ran(len(new))
        if rows is None:
            rows = next_logits(model, ids, cache, greedy=is_greedy)[None]
        rows = rows[-1 - len(guesses) :]
        near_ties = is_near_tie(rows) if redo_near_ties else [False] * len(rows)
        for logits, finite, near_tie, guess in zip(
            rows, is_finite(rows), near_ties, [*guesses, None], strict=True
        ):
            if not finite:
                raise not_finite(len(ids))
            if near_tie:
                logits = next_logits(model, ids, None, greedy=True)  # [V], from the whole pass
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


def next_logits(model: GPTModel, ids: Sequence[int], cache: KVCache | None, *, greedy: bool) -> Tensor:
    """Logits [V] of the token after `ids`, as far as `greedy` decoding looks at them or all.

    The cache holds a beginning of `ids` and takes in the rest.
    """
    context = model.config.context_length
    device = model.tok_emb.weight.device
    if cache is None or len(ids) > context:
        # Behind the context every position has moved, and with it every key and value: nothing cached holds.
        hidden = model.hidden(torch.tensor([ids[-context:]], device=device), last_only=True)  # [1, 1, C]
    else:
        new = torch.tensor([ids[cache.length :]], device=device)  # [1, T]
        for part in torch.split(new, PREFILL_TOKENS if device.type == "cpu" else context, dim=1):
            hidden = model.hidden(part, cache, last_only=True)  # [1, 1, C]
    logits: Tensor = (model.greedy_logits if greedy else model.out_head)(hidden[0, -1])  # [V]
    return logits
