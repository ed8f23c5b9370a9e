"""Many prompts decoded side by side: each step reads the weights once for all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gptcli.config.cost import kv_bytes_per_token
from gptcli.decode.loop import Choose, Step, most_probable, next_logits, not_finite, take_step
from gptcli.decode.near_ties import is_finite, is_near_tie
from gptcli.errors import NumericsError
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.ragged_cache import RaggedCache
from gptcli.system.memory import available_bytes, require_memory

# A pass over new prompts holds about this many tokens at most, so that its activations stay small.
GROUP_TOKENS = 4096


@dataclass(eq=False)
class Row:
    """A prompt under way: its tokens so far, and how the next is chosen; `ended` takes it out."""

    ids: list[int]
    budget: int
    choose: Choose = most_probable
    ended: bool = False


# Gives up to so many new rows, none where there are none for now.
TakeRows = Callable[[int], Sequence[Row]]


class Batch:
    """Up to `size` rows; `steps` gives the next token of each, again and again, while rows come and go.

    In float32 a greedy row's tokens are those of `decode`, whatever shares its batch: near-ties are decided
    by the row's own whole pass. Rows past the context length, which slide, take such a pass for each token.
    """

    def __init__(self, model: GPTModel, size: int, *, use_cache: bool = True, logprobs: bool = False) -> None:
        self.model, self.size, self.use_cache, self.logprobs = model, size, use_cache, logprobs
        self._cached: list[Row] = []  # in the order of the cache's rows
        self._sliding: list[Row] = []
        self._cache = RaggedCache.of(model, size, 0)  # grows with the first rows

    @torch.inference_mode()
    def steps(self, take: TakeRows) -> Iterator[tuple[Row, Step | NumericsError]]:
        """Yield each row's next token, or why there is none; ends when `take` gives no row to an empty batch.

        A row leaves when its `budget` is used up, or its owner sets `ended`; its place is free for another.
        """
        while True:
            free = self.size - len(self._cached) - len(self._sliding)
            if free == self.size or free >= max(1, self.size // 8):  # one pass for several new prompts
                rows = take(free)
                if free == self.size and not rows:
                    return
                yield from self._admit(rows)
            if self._cached:
                last = torch.tensor([row.ids[-1:] for row in self._cached], device=self._device)  # [B, 1]
                hidden = self.model.hidden(last, self._cache)  # [B, 1, C]
                yield from self._choose(self._cached, hidden[:, -1])
            for row in list(self._sliding):
                yield from self._choose([row], self._slid(row))
            self._let_go()

    def _admit(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Step | NumericsError]]:
        """The first step of new rows; those with the same number of tokens, or nearly, share a pass."""
        fitting = [row for row in rows if self._fits(row)]
        for row in (row for row in rows if not self._fits(row)):
            self._sliding.append(row)
            yield from self._choose([row], self._slid(row))
        self._make_room(fitting)
        for group in _groups(sorted(fitting, key=lambda row: len(row.ids))):
            lengths = [len(row.ids) for row in group]
            T = max(lengths)
            # Padded on the right with the row's own token: nothing looks there, and nothing foreign comes in.
            ids = [row.ids + row.ids[-1:] * (T - len(row.ids)) for row in group]
            filled = KVCache.of(self.model, len(group), T)
            hidden = self.model.hidden(torch.tensor(ids, device=self._device), filled)  # [B, T, C]
            ends = torch.tensor(lengths, device=self._device) - 1  # [B]
            last = hidden[torch.arange(len(group), device=self._device), ends]  # [B, C]
            self._cache.admit(filled, lengths)
            self._cached += group
            yield from self._choose(group, last)
        self._let_go()

    def _slid(self, row: Row) -> Tensor:
        """What the head reads of a row that the cache does not hold, [1, C]."""
        ids = row.ids[-self.model.config.context_length :]
        return self.model.hidden(torch.tensor([ids], device=self._device), last_only=True)[:, -1]

    def _choose(
        self, rows: Sequence[Row], hidden: Tensor
    ) -> Iterator[tuple[Row, Step | NumericsError]]:  # [B, C]
        """Each row's token from the model's logits, where they decide it."""
        is_greedy = all(row.choose is most_probable for row in rows)
        logits = (self.model.greedy_logits if is_greedy else self.model.out_head)(hidden)  # [B, V]
        finite, near_ties = is_finite(logits), is_near_tie(logits)
        most = logits.argmax(-1).tolist()
        for i, row in enumerate(list(rows)):
            if not finite[i]:
                row.ended = True
                yield row, not_finite(len(row.ids))
                continue
            if row.choose is most_probable and near_ties[i]:
                whole = next_logits(self.model, row.ids, None, greedy=True)  # [V]
                step = take_step(whole, row.choose, logprobs=self.logprobs)
            elif row.choose is most_probable and not self.logprobs:
                step = Step(most[i])
            else:
                step = take_step(logits[i], row.choose, logprobs=self.logprobs)
            row.ids.append(step.token_id)
            row.budget -= 1
            row.ended = row.budget <= 0
            yield row, step

    def _let_go(self) -> None:
        """Take out the rows that have ended; those that outgrew the context go on sliding."""
        self._sliding = [row for row in self._sliding if not row.ended]
        for at in reversed(range(len(self._cached))):
            row = self._cached[at]
            if row.ended or not self._fits(row):
                self._cache.drop(at)
                self._cached[at] = self._cached[-1]
                del self._cached[-1]
                if not row.ended:
                    self._sliding.append(row)

    def _fits(self, row: Row) -> bool:
        return self.use_cache and len(row.ids) <= self.model.config.context_length

    def _make_room(self, rows: Sequence[Row]) -> None:
        """Let the cache hold what these rows may come to; raises `ResourceError` when memory does not."""
        context = self.model.config.context_length
        needed = min(context, max((len(row.ids) + row.budget for row in rows), default=0))
        if needed <= self._cache.capacity:
            return
        capacity = min(context, needed + needed // 2)  # not again for every prompt that is a little longer
        if self._device.type == "cpu":
            n_bytes = kv_bytes_per_token(self.model.config, self._dtype.itemsize) * capacity * self.size
            what = f"the key/value cache of {self.size} rows of {capacity} tokens"
            require_memory(n_bytes, available_bytes(), what, "a smaller --batch-size or --max-new-tokens")
        larger = RaggedCache.of(self.model, self.size, capacity)
        if self._cached:
            larger.admit(self._cache, self._cache.lengths)
        self._cache = larger

    @property
    def _device(self) -> torch.device:
        return self.model.tok_emb.weight.device

    @property
    def _dtype(self) -> torch.dtype:
        return self.model.tok_emb.weight.dtype


def _groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in order of length, cut so that each part's padded tokens stay within `GROUP_TOKENS`."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or (end + 1 - start) * len(rows[end].ids) > GROUP_TOKENS:
            yield rows[start:end]
            start = end
