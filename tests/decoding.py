"""Decoding for tests, by an engine or by the model in PyTorch."""

from collections.abc import Iterator, Sequence
from typing import Any

from gptcli.decode.engine import Engine
from gptcli.decode.loop import decode
from gptcli.decode.sampling import GREEDY, Sampler
from gptcli.decode.select import GeneratedToken
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.gpt import GPTModel


def decode_tokens(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampler: Sampler = GREEDY,
    *,
    engine: Engine | None = None,
    **options: Any,
) -> Iterator[GeneratedToken]:
    """Yield the tokens of `engine`, or of the model in PyTorch if there is none."""
    return decode(engine or TorchEngine(model), prompt_ids, max_new_tokens, sampler, **options)


def decode_ids(
    model: GPTModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampler: Sampler = GREEDY,
    **options: Any,
) -> list[int]:
    """Return the ids of `decode_tokens`."""
    return [token.token_id for token in decode_tokens(model, prompt_ids, max_new_tokens, sampler, **options)]
