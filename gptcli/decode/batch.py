"""The decode loop for a batch: each step reads the weights once for all of its sequences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gptcli.decode.engine import Array, Cache, Engine, Exactness, ForwardRequest
from gptcli.decode.near_ties import check_logits
from gptcli.decode.sampling import GREEDY, Sampler
from gptcli.decode.select import GeneratedToken, exactness_for, forward_whole, sample_token
from gptcli.decode.speculation import Speculator
from gptcli.errors import NumericsError

if TYPE_CHECKING:  # not imported without processors, so that the program starts fast
    from gptcli.decode.processors import LogitsProcessors

# A pass over new prompts holds about this many tokens at most, so that its activations stay small.
PREFILL_BATCH_TOKENS = 4096


@dataclass(eq=False)
class SequenceState:
    """A sequence that is being decoded: its tokens, their choice, its drafts. `finished` removes it."""

    ids: list[int]
    tokens_left: int
    sampler: Sampler = GREEDY
    processors: "LogitsProcessors | None" = None
    finished: bool = False
    speculator: Speculator | None = None
    draft: list[int] = field(default_factory=list)  # verified by the next step


# Returns up to n new sequences; none if there are none for now.
NextSequences = Callable[[int], Sequence[SequenceState]]
Decoded = tuple[SequenceState, GeneratedToken | NumericsError]


class BatchDecoder:
    """Decodes up to `size` sequences at once; new ones replace those that finish.

    In float32 the greedy tokens of a sequence are those of `decode`, whatever else is in its batch. Past the
    context length, where the window slides, each token of a sequence takes a forward pass of its own.
    """

    def __init__(self, engine: Engine, size: int, *, use_cache: bool = True, logprobs: bool = False) -> None:
        self._engine, self._size, self._use_cache, self._logprobs = engine, size, use_cache, logprobs
        self._cached: list[SequenceState] = []  # in the order of the cache's rows
        self._sliding: list[SequenceState] = []
        self._cache: Cache | None = None  # allocated for the first sequences

    def decode(self, next_sequences: NextSequences) -> Iterator[Decoded]:
        """Yield each sequence's tokens, step by step, or the error that ends the sequence.

        Ends when the batch is empty and `next_sequences` returns none. A sequence is removed when it has no
        tokens left, or when the caller sets `finished`. Raises `ResourceError` if the cache does not fit
        into memory.
        """
        while True:
            free = self._size - len(self._cached) - len(self._sliding)
            if free == self._size or free >= max(1, self._size // 8):  # one pass for several new prompts
                new = next_sequences(free)
                if free == self._size and not new:
                    return
                yield from self._admit(new)
            if self._cached:
                yield from self._step()
            for sequence in list(self._sliding):
                yield from self._slide(sequence)
            self._remove_finished()

    def _admit(self, sequences: Sequence[SequenceState]) -> Iterator[Decoded]:
        """Decode the first token of new sequences; prompts of similar length share a forward pass."""
        fitting = [sequence for sequence in sequences if self._fits(sequence)]
        for sequence in (sequence for sequence in sequences if not self._fits(sequence)):
            self._sliding.append(sequence)
            yield from self._slide(sequence)
        self._reserve(fitting)
        for group in _group_by_length(fitting):
            first_row = len(self._cached)
            request = self._request(group, [sequence.ids for sequence in group], first_row)
            logits = self._engine.forward(request)  # [B, V]
            self._cached += group
            for row, sequence in enumerate(group):
                yield from self._select(sequence, logits[row : row + 1], first_row + row)
        self._remove_finished()

    def _step(self) -> Iterator[Decoded]:
        """Decode the next token of every cached sequence, and with a right draft more of them."""
        cache = self._cache
        assert cache is not None
        self._draft(cache)
        sequences = list(self._cached)
        new = [[sequence.ids[-1], *sequence.draft] for sequence in sequences]
        logits = self._engine.forward(self._request(sequences, new, 0))  # [N, V]
        first = 0
        for row, (sequence, tokens) in enumerate(zip(sequences, new, strict=True)):
            n_before = len(sequence.ids)
            yield from self._select(sequence, logits[first : first + len(tokens)], row)
            first += len(tokens)
            if sequence.speculator is not None:
                sequence.speculator.observe_accepted(sequence.ids[n_before:])
            cache.truncate(len(sequence.ids) - 1, row)

    def _draft(self, cache: Cache) -> None:
        """Draft for every sequence, if a step verifies more tokens than the batch has sequences."""
        longest = max(len(sequence.ids) for sequence in self._cached)  # rows may be padded to the longest
        n_each = min(self._engine.max_tokens // len(self._cached) - 1, cache.capacity - longest)
        for sequence in self._cached:
            n_most = min(n_each, sequence.tokens_left - 1)
            speculator = sequence.speculator
            if speculator is not None and n_each > 0:
                sequence.draft = speculator.propose(sequence.ids, n_most, cache, sequence.tokens_left)
            else:
                sequence.draft = []

    def _request(
        self, sequences: Sequence[SequenceState], ids: Sequence[Sequence[int]], first_row: int
    ) -> ForwardRequest:
        n_logits = [1 + len(sequence.draft) for sequence in sequences]
        return ForwardRequest(ids, self._cache, first_row, n_logits, self._exactness(sequences))

    def _slide(self, sequence: SequenceState) -> Iterator[Decoded]:
        sequence.draft = []
        yield from self._select(
            sequence, forward_whole(self._engine, sequence.ids, self._exactness([sequence])), None
        )

    def _select(self, sequence: SequenceState, logits: Array, row: int | None) -> Iterator[Decoded]:
        """Choose a sequence's tokens from logits [n, V]: until a draft is wrong, or the sequence ends.

        `row` is that of the cache, None for a sequence that has none.
        """
        checked = check_logits(logits, self._engine.near_tie_tolerance)
        for each, drafted in zip(checked, [*sequence.draft, None], strict=True):
            try:
                token = sample_token(
                    self._engine,
                    sequence.ids,
                    each,
                    sequence.sampler,
                    sequence.processors,
                    logprobs=self._logprobs,
                    cache=None if row is None else self._cache,
                    row=row or 0,
                )
            except NumericsError as error:
                sequence.finished = True
                yield sequence, error
                return
            sequence.ids.append(token.token_id)
            sequence.tokens_left -= 1
            sequence.finished = sequence.tokens_left <= 0
            yield sequence, token
            if sequence.finished or token.token_id != drafted:
                return

    def _exactness(self, sequences: Sequence[SequenceState]) -> Exactness:
        """Return which logits the most demanding sequence needs."""
        needed = {exactness_for(s.sampler, s.processors, logprobs=self._logprobs) for s in sequences}
        return "all" if "all" in needed else needed.pop()

    def _remove_finished(self) -> None:
        """Remove the sequences that have finished; move those that outgrew the context to `_sliding`."""
        self._sliding = [sequence for sequence in self._sliding if not sequence.finished]
        for row in reversed(range(len(self._cached))):
            sequence = self._cached[row]
            if sequence.finished or not self._fits(sequence):
                assert self._cache is not None
                self._cache.remove(row)
                self._cached[row] = self._cached[-1]
                del self._cached[-1]
                if not sequence.finished:
                    self._sliding.append(sequence)

    def _fits(self, sequence: SequenceState) -> bool:
        return self._use_cache and len(sequence.ids) <= self._engine.config.context_length

    def _reserve(self, sequences: Sequence[SequenceState]) -> None:
        """Make the cache large enough for all tokens of these sequences."""
        context = self._engine.config.context_length
        needed = min(context, max((len(s.ids) + s.tokens_left for s in sequences), default=0))
        if needed == 0 or (self._cache is not None and needed <= self._cache.capacity):
            return
        # Half as much again, so that not every prompt that is a little longer needs a new cache.
        larger = self._engine.new_cache(self._size, min(context, needed + needed // 2))
        larger.clear()
        if self._cache is not None:
            larger.copy_from(self._cache)
        self._cache = larger


def _group_by_length(sequences: Sequence[SequenceState]) -> Iterator[Sequence[SequenceState]]:
    """Yield groups of sequences in order of length, each within `PREFILL_BATCH_TOKENS`, padding included."""
    ordered = sorted(sequences, key=lambda sequence: len(sequence.ids))
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or (end + 1 - start) * len(ordered[end].ids) > PREFILL_BATCH_TOKENS:
            yield ordered[start:end]
            start = end
