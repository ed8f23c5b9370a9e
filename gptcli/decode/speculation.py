"""Speculative decoding: how many draft tokens to verify at once, by acceptance rates and measured costs.

The check of a draft is that of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
Decoding", for greedy decoding.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gptcli.decode.engine import Cache
from gptcli.decode.prompt_lookup import PromptLookup

# Assumed before anything is measured: the acceptance rates of prompt lookup and of the draft model; one more
# token adds a twelfth to a step, and one step of the draft model takes a third of a step.
PRIOR_ACCEPTANCE, PRIOR_MODEL_ACCEPTANCE, PRIOR_TOKEN_COST, PRIOR_MODEL_COST = 0.5, 0.9, 1 / 12, 1 / 3
# The newest observation's weight in the running mean of the acceptance rate. Of a step's seconds the least
# counts, raised a little with each step, so that one slow reader does not count for long.
ACCEPTANCE_WEIGHT, COST_DRIFT = 0.1, 1.03


class DraftModel(Protocol):
    """A model that is cheaper than the one it drafts for."""

    def is_worth_it(self, tokens_left: int) -> bool:
        """Return whether it is ready; if not, it may begin to prepare where `tokens_left` are worth that."""

    def draft(self, token: int, cache: Any, n: int) -> list[int]:
        """Return n tokens that may follow `token`, the one after what the cache holds.

        The cache is left as it was.
        """


class _StepKind(NamedTuple):
    """Steps that cost about the same: by their number of tokens, and by who drafted all but the first."""

    n_tokens: int
    by_draft_model: bool


class Speculator:
    """Proposes draft tokens, from the text so far and by a draft model if given, only where that pays.

    Prompt lookup costs nothing, so its drafts are scored even when they are not verified: when the token
    comes, it shows whether they would have been right. So text without repeats is decoded one by one.
    """

    def __init__(
        self,
        max_draft_tokens: int | None = None,
        *,
        measures: bool = True,
        lookup: bool = True,
        draft_model: DraftModel | None = None,
    ) -> None:
        """Propose at most `max_draft_tokens` at once; None leaves the number to what pays.

        Without `measures` the assumed costs hold: several processes must all verify the same draft.
        """
        self._max_draft_tokens, self._measures = max_draft_tokens, measures
        self._lookup = PromptLookup() if lookup else None
        self._draft_model = draft_model
        self.acceptance_rate, self.model_acceptance_rate = PRIOR_ACCEPTANCE, PRIOR_MODEL_ACCEPTANCE
        self._steps: Counter[_StepKind] = Counter()
        self._seconds: dict[_StepKind, float] = {}
        self._running: tuple[_StepKind, float] | None = None
        self._from_lookup: list[int] = []
        self._from_model: list[int] = []
        self._start = 0.0

    def propose(self, ids: Sequence[int], n_most: int, cache: Cache, tokens_left: int) -> list[int]:
        """Return up to `n_most` draft tokens to verify after `ids`, possibly none.

        `tokens_left` are still wanted in all.
        """
        self._measure()
        self._start = time.perf_counter()
        self._from_lookup = self._lookup.propose(ids, max(1, n_most)) if self._lookup else []
        self._from_model = []
        n_most = n_most if self._max_draft_tokens is None else min(n_most, self._max_draft_tokens)
        n_lookup, speedup = self._best_length(
            min(n_most, len(self._from_lookup)), self.acceptance_rate, by_draft_model=False
        )
        model = self._draft_model
        if model is not None and len(ids) == cache.length + 1 and model.is_worth_it(tokens_left):
            n, model_speedup = self._best_length(n_most, self.model_acceptance_rate, by_draft_model=True)
            if model_speedup > speedup:
                self._from_model = model.draft(ids[-1], cache, n)
                return self._from_model
        return self._from_lookup[:n_lookup]

    def observe_accepted(self, tokens: Sequence[int]) -> None:
        """Learn from the tokens that came after the last ids."""
        self.acceptance_rate = _updated_rate(self.acceptance_rate, self._from_lookup, tokens)
        self.model_acceptance_rate = _updated_rate(self.model_acceptance_rate, self._from_model, tokens)

    def record_step(self, n_tokens: int) -> None:
        """Note that a step of `n_tokens` has run; its cost lasts from its proposal to the next one."""
        self._running = (_StepKind(n_tokens, bool(self._from_model)), self._start)

    def record_seconds(self, n_tokens: int, seconds: float, *, by_draft_model: bool = False) -> None:
        """Note what a step of `n_tokens` takes; the first of its kind, which is slower, does not count."""
        kind = _StepKind(n_tokens, by_draft_model)
        self._steps[kind] += 1
        if self._steps[kind] > 1:
            self._seconds[kind] = min(seconds, self._seconds.get(kind, seconds) * COST_DRIFT)

    def relative_cost(self, n_tokens: int, *, by_draft_model: bool = False) -> float:
        """Return what a step of `n_tokens` takes, in steps of one token: measured, else assumed."""
        one = self._seconds.get(_StepKind(1, False))
        measured = self._seconds.get(_StepKind(n_tokens, by_draft_model))
        if one is not None and measured is not None:
            return measured / one
        return 1 + (n_tokens - 1) * (PRIOR_TOKEN_COST + PRIOR_MODEL_COST * by_draft_model)

    def _measure(self) -> None:
        if self._running is None or not self._measures:
            return
        (kind, start), self._running = self._running, None
        self.record_seconds(kind.n_tokens, time.perf_counter() - start, by_draft_model=kind.by_draft_model)

    def _best_length(self, n_most: int, rate: float, *, by_draft_model: bool) -> tuple[int, float]:
        """Return the draft length with the most tokens per second, and its expected speed-up over none."""
        best_length, best_speedup = 0, 1.0
        expected_tokens = all_right = 1.0
        for n in range(1, n_most + 1):
            all_right *= rate
            expected_tokens += all_right
            speedup = expected_tokens / self.relative_cost(1 + n, by_draft_model=by_draft_model)
            if speedup > best_speedup:
                best_length, best_speedup = n, speedup
        return best_length, best_speedup


def _updated_rate(rate: float, draft: Sequence[int], tokens: Sequence[int]) -> float:
    """Return the acceptance rate after one more draft, which counts up to its first wrong token."""
    for drafted, token in zip(draft, tokens, strict=False):
        rate += ACCEPTANCE_WEIGHT * ((drafted == token) - rate)
        if drafted != token:
            break
    return rate
