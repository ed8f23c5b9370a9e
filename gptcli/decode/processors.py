"""Logits processors: they change the logits of the next token by the tokens before it.

Sources: repetition penalty, Keskar et al. 2019, "CTRL", section 4.1; frequency and presence penalties,
OpenAI's API reference, in vLLM's order; n-grams and banned sequences, `NoRepeatNGramLogitsProcessor` and
`NoBadWordsLogitsProcessor` of transformers.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gptcli.decode.engine import Array
from gptcli.decode.options import GenerationOptions
from gptcli.errors import NumericsError, count


class LogitsProcessor(Protocol):
    """A rule for one sequence. It reads each token of the sequence once."""

    gain: float  # how much it enlarges the difference of two logits at most

    def __call__(self, ids: Sequence[int], logits: Array) -> None:
        """Change the float64 logits [V] after `ids` in place; `ids` extend those of the last call."""


class RepetitionPenalty:
    """Divides positive logits of the tokens of prompt and completion by the penalty; multiplies others."""

    def __init__(self, penalty: float, vocab_size: int) -> None:
        self._penalty, self._occurs, self._n_seen = penalty, np.zeros(vocab_size, np.bool_), 0
        self.gain = max(penalty, 1 / penalty)

    def __call__(self, ids: Sequence[int], logits: Array) -> None:
        """Change the float64 logits [V] after `ids` in place; `ids` extend those of the last call."""
        self._occurs[ids[self._n_seen :]] = True
        self._n_seen = len(ids)
        old = logits[self._occurs]
        logits[self._occurs] = np.where(old > 0, old / self._penalty, old * self._penalty)


class FrequencyPenalty:
    """Lowers each token of the completion by `frequency` per occurrence and by `presence` once."""

    gain = 1.0

    def __init__(self, frequency: float, presence: float, n_prompt_ids: int, vocab_size: int) -> None:
        self._frequency, self._presence = frequency, presence
        self._counts, self._n_seen = np.zeros(vocab_size, np.int32), n_prompt_ids

    def __call__(self, ids: Sequence[int], logits: Array) -> None:
        """Change the float64 logits [V] after `ids` in place; `ids` extend those of the last call."""
        np.add.at(self._counts, ids[self._n_seen :], 1)
        self._n_seen = len(ids)
        logits -= self._frequency * self._counts + self._presence * (self._counts > 0)


class NoRepeatNgram:
    """Bans every token that would complete an n-gram that prompt or completion already have."""

    gain = 1.0

    def __init__(self, n: int) -> None:
        self._n, self._n_seen = n, 0
        self._last_tokens: dict[tuple[int, ...], set[int]] = defaultdict(set)

    def __call__(self, ids: Sequence[int], logits: Array) -> None:
        """Change the float64 logits [V] after `ids` in place; `ids` extend those of the last call."""
        for last in range(max(self._n - 1, self._n_seen), len(ids)):
            self._last_tokens[tuple(ids[last - self._n + 1 : last])].add(ids[last])
        self._n_seen = len(ids)
        if len(ids) >= self._n:
            banned = self._last_tokens.get(tuple(ids[len(ids) - self._n + 1 :]), ())
            logits[list(banned)] = -math.inf


class BannedSequences:
    """Bans the last token of each sequence where the tokens before it, of prompt or completion, are there."""

    gain = 1.0

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._last_tokens: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for sequence in sequences:
            self._last_tokens[tuple(sequence[:-1])].append(sequence[-1])
        self._lengths = {len(before) for before in self._last_tokens}

    def __call__(self, ids: Sequence[int], logits: Array) -> None:
        """Change the float64 logits [V] after `ids` in place."""
        for length in self._lengths:
            if length <= len(ids):
                logits[self._last_tokens.get(tuple(ids[len(ids) - length :]), [])] = -math.inf


class LogitsProcessors:
    """The processors of one sequence, one after another."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._processors = list(processors)
        self.gain = math.prod(processor.gain for processor in processors)

    @classmethod
    def of(
        cls,
        options: GenerationOptions,
        banned_ids: Sequence[Sequence[int]],
        n_prompt_ids: int,
        vocab_size: int,
    ) -> "LogitsProcessors":
        """Return the processors that the options ask for; `banned_ids` are the tokens of their bans."""
        processors: list[LogitsProcessor] = []
        if options.repetition_penalty != 1:
            processors.append(RepetitionPenalty(options.repetition_penalty, vocab_size))
        if options.frequency_penalty or options.presence_penalty:
            penalties = options.frequency_penalty, options.presence_penalty
            processors.append(FrequencyPenalty(*penalties, n_prompt_ids, vocab_size))
        if options.no_repeat_ngram:
            processors.append(NoRepeatNgram(options.no_repeat_ngram))
        if banned_ids:
            processors.append(BannedSequences(banned_ids))
        return cls(processors)

    def __call__(self, ids: Sequence[int], logits: Array) -> Array:
        """Return the float64 logits [V] to choose from after `ids`, for the model's logits of any dtype.

        Raises `NumericsError` if every token is banned.
        """
        changed = logits.astype(np.float64)
        for processor in self._processors:
            processor(ids, changed)
        if changed.max() == -math.inf:
            raise NumericsError(
                f"no token is left after {count(len(ids), 'token')}: --ban and --no-repeat-ngram ban all"
            )
        return changed
