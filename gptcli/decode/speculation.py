"""Speculative decoding: the choice of draft tokens, by acceptance rates and measured costs.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", for greedy
decoding.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gptcli.decode.engine import Cache
from gptcli.decode.prompt_lookup import PromptLookup

# Assumed before anything is measured: the acceptance rates of prompt lookup and of the draft model; the cost
# of one more token in a step, and of one step of the draft model, both in steps of one token.
PRIOR_ACCEPTANCE, PRIOR_MODEL_ACCEPTANCE, PRIOR_TOKEN_COST, PRIOR_MODEL_COST = 0.5, 0.9, 1 / 12, 1 / 3
# The weight of the newest observation in the running mean of the acceptance rate. The cost of a step is the
# least measured, raised a little with each step, so that an old measurement does not count forever.
ACCEPTANCE_WEIGHT, COST_DRIFT = 0.1, 1.03


class DraftModel(Protocol):
    """A model that is cheaper than the one it drafts for."""

    def is_worth_it(self, tokens_left: int) -> bool:
        """Return whether it is ready. If not, it may begin to prepare if `tokens_left` are enough."""

    def draft(self, token: int, cache: Any, n: int) -> list[int]:
        """Return `n` draft tokens after `token`, which follows the tokens in the cache.

        The cache is left as it was.
        """


class _StepKind(NamedTuple):
    """Steps of about the same cost: the same number of tokens, and the same origin of the draft."""

    n_tokens: int
    by_draft_model: bool


class Speculator:
    """Proposes draft tokens, by prompt lookup and by a draft model if there is one, only where they pay.

    Prompt lookup costs nothing, so it drafts at every step, and every generated token shows whether its draft
    was right, verified or not. So the acceptance rate is known before a draft is verified.
    """

    def __init__(
        self,
        max_draft_tokens: int | None = None,
        *,
        measures: bool = True,
        lookup: bool = True,
        draft_model: DraftModel | None = None,
    ) -> None:
        """Propose at most `max_draft_tokens` at once; None: as many as pay.

        Without `measures` the assumed costs are used: several processes must all verify the same draft.
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

        `tokens_left` tokens are still to be generated.
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
        """Update the acceptance rates with the tokens that were generated after the last proposal."""
        self.acceptance_rate = _updated_rate(self.acceptance_rate, self._from_lookup, tokens)
        self.model_acceptance_rate = _updated_rate(self.model_acceptance_rate, self._from_model, tokens)

    def record_step(self, n_tokens: int) -> None:
        """Record that a step of `n_tokens` has run; its time is that from its proposal to the next one."""
        self._running = (_StepKind(n_tokens, bool(self._from_model)), self._start)

    def record_seconds(self, n_tokens: int, seconds: float, *, by_draft_model: bool = False) -> None:
        """Record the time of a step of `n_tokens`; the first of each kind is slower and does not count."""
        kind = _StepKind(n_tokens, by_draft_model)
        self._steps[kind] += 1
        if self._steps[kind] > 1:
            self._seconds[kind] = min(seconds, self._seconds.get(kind, seconds) * COST_DRIFT)

    def relative_cost(self, n_tokens: int, *, by_draft_model: bool = False) -> float:
        """Return the cost of a step of `n_tokens`, in steps of one token: measured, else assumed."""
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
    """Return the acceptance rate after one more draft; its tokens count up to the first wrong one."""
    for drafted, token in zip(draft, tokens, strict=False):
        rate += ACCEPTANCE_WEIGHT * ((drafted == token) - rate)
        if drafted != token:
            break
    return rate
