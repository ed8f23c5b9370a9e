"""The model itself as an engine: nothing is faster in it, but several tokens at once check guesses."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel


class ModelSteps:
    """Steps by `GPTModel.forward`, of up to `max_tokens` tokens."""

    max_tokens = 8

    def __init__(self, model: GPTModel, description: str) -> None:
        self._model, self._description = model, description

    def describe(self) -> str:
        """What decodes."""
        return self._description

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
        """Float32 logits [T, V] of the ids behind what the cache holds; None for lack of room."""
        if len(ids) > min(self.max_tokens, cache.capacity - cache.length):
            return None
        new = torch.tensor([ids], device=self._model.tok_emb.weight.device)  # [1, T]
        hidden = self._model.hidden(new, cache)[0]  # [T, C]
        return (self._model.greedy_logits if greedy else self._model.out_head)(hidden).float()  # [T, V]
