"""Speculation: it never shows in the ids, and it drafts where that pays."""

import random

import numpy as np
import pytest
import torch

from gptcli.decode.prompt_lookup import PromptLookup
from gptcli.decode.speculation import Speculator
from gptcli.engine.native.model import NativeModel
from gptcli.model.cache import KVCache
from tests.decoding import decode_ids, decode_tokens
from tests.engine.models import CONTEXT, VOCABULARY, by_columns, config, native_engine
from tests.models import lively_model


class ScriptedSpeculator(Speculator):
    """Drafts the text that will come, with every n-th token wrong."""

    def __init__(self, whole: list[int], wrong_every: int) -> None:
        super().__init__()
        self._whole, self._wrong_every, self.n_proposed = whole, wrong_every, 0

    def propose(self, ids, n_most, _cache, _tokens_left):
        draft = self._whole[len(ids) : len(ids) + n_most]
        for i in range(len(draft)):
            self.n_proposed += 1
            if self._wrong_every and self.n_proposed % self._wrong_every == 0:
                draft[i] = (draft[i] + 1) % VOCABULARY
        return draft


class TestSpeculation:
    def test_never_shows_in_the_ids_of_hundreds_of_prompts(self, tmp_path):
        """Text that loops, to the end of the budget and past the end of the context."""
        draw = random.Random(0)
        for seed, model in enumerate(
            (lively_model(config()), by_columns(lively_model(config(tie_embeddings=True), 1), tmp_path))
        ):
            engine = native_engine(model)
            for i in range(150):
                period = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 9))]
                prompt = (period * 10)[: draw.randrange(1, CONTEXT + 6)]
                n = draw.choice((1, 2, 7, 30, 80))
                plain = decode_ids(model, prompt, n)
                fast = decode_ids(model, prompt, n, engine=engine, speculator=Speculator())
                assert fast == plain, (seed, i)

    @pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 5])
    def test_whatever_part_of_the_drafts_is_right(self, wrong_every):
        model = lively_model(config())
        engine = native_engine(model)
        whole = [3, *(s.token_id for s in decode_tokens(model, [3], 200))]
        speculator = ScriptedSpeculator(whole, wrong_every)
        steps = list(decode_tokens(model, [3], 200, engine=engine, speculator=speculator, logprobs=True))
        assert [step.token_id for step in steps] == whole[1:]
        assert speculator.n_proposed > 30
        plain = [step.logprob for step in decode_tokens(model, [3], 200, logprobs=True)]
        assert [step.logprob for step in steps] == pytest.approx(plain, abs=1e-4)

    def test_rounding_never_decides_with_drafts_what_it_does_not_without(self, monkeypatch):
        model = lively_model(config())
        with torch.no_grad():  # every token has a twin, but for less than the engine may be off
            model.out_head.weight[60:] = model.out_head.weight[:60] * (1 + 2e-6)
        engine = native_engine(model)
        real, draw = NativeModel.forward, np.random.default_rng(0)

        def rounded(self, ids, cache, *, n_logits=1, argmax_only=False):
            logits = real(self, ids, cache, n_logits=n_logits, argmax_only=argmax_only)
            is_whole = cache.capacity == len(ids)  # what decides a near tie is left as it is
            noise = draw.standard_normal(logits.shape, dtype=np.float32)
            return logits if is_whole else logits * (1 + np.float32(2e-6) * noise)

        plain = {first: decode_ids(model, [first], 40, engine=engine, use_cache=False) for first in range(8)}
        monkeypatch.setattr(NativeModel, "forward", rounded)
        differed = 0
        for first, ids in plain.items():
            speculator = ScriptedSpeculator([first, *ids], 3)
            assert decode_ids(model, [first], 40, engine=engine, speculator=speculator) == ids
            with monkeypatch.context() as patch:
                patch.setattr(engine, "near_tie_tolerance", 0.0)
                differed += decode_ids(model, [first], 40, engine=engine) != ids
        assert differed

    def test_a_reader_that_stops_in_a_draft_leaves_nothing_behind(self):
        model = lively_model(config())
        engine = native_engine(model)
        whole = [3, *(s.token_id for s in decode_tokens(model, [3], 40))]
        for n in range(1, 12):
            steps = decode_tokens(model, [3], 40, engine=engine, speculator=ScriptedSpeculator(whole, 0))
            assert [next(steps).token_id for _ in range(n)] == whole[1 : n + 1]
            steps.close()

    def test_the_command_prints_the_same_text(self, cli):
        """The stories model, with a stop string and end of text among what is drafted."""
        base = ("generate", "the king said to the king said to the king said", "-n", 90, "-q")
        for options in ((), ("--stop", "said"), ("--ignore-eos",), ("--overflow", "stop", "-n", 400)):
            plain = cli(*base, *options, "--speculate", "off").out
            assert cli(*base, *options).out == plain
            assert cli(*base, *options, "--draft-tokens", 2, "--threads", 1).out == plain


class TestPromptLookup:
    def test_drafts_what_followed_before_on_through_a_loop(self):
        assert PromptLookup().propose([1, 2, 3], 4) == []
        assert PromptLookup().propose([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
        assert PromptLookup().propose([7, 1, 2, 7, 1, 2], 7) == [7, 1, 2, 7, 1, 2, 7]
        assert PromptLookup().propose([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2], 2) == [8, 6]  # three before two

    def test_grows_with_the_text_as_if_it_had_been_there_at_once(self):
        draw = random.Random(0)
        ids = [draw.randrange(4) for _ in range(300)]
        growing = PromptLookup()
        for end in range(1, 300):
            assert growing.propose(ids[:end], 5) == PromptLookup().propose(ids[:end], 5)


class TestSpeculator:
    def test_stops_drafting_where_it_is_always_wrong_and_begins_again_when_it_would_be_right(self):
        speculator, ids = Speculator(), [1, 2, 1, 2, 1, 2]
        lengths = []
        for _ in range(40):
            lengths.append(len(proposed(speculator, ids, 7)))
            speculator.observe_accepted([50])  # never what followed before
        assert lengths[0] > 0
        assert lengths[30:] == [0] * 10
        for _ in range(40):
            lengths.append(len(proposed(speculator, ids, 7)))
            speculator.observe_accepted([1])
        assert lengths[-1] == 7

    def test_measures_what_steps_cost_while_decoding_unless_told_not_to(self):
        model = lively_model(config())
        assumed = Speculator().relative_cost(2)
        for measures in (True, False):
            speculator = Speculator(1, measures=measures)  # one draft token at once, so two a step
            decode_ids(model, [1, 2, 1, 2, 1, 2], 50, engine=native_engine(model), speculator=speculator)
            assert (speculator.relative_cost(2) != assumed) == measures

    def test_the_first_step_of_a_kind_does_not_count_and_the_quickest_of_the_others_does(self):
        speculator = Speculator()
        for n_tokens, seconds in ((1, 9.0), (1, 2.0), (1, 1.0), (4, 99.0), (4, 3.0)):
            speculator.record_seconds(n_tokens, seconds)
        assert speculator.relative_cost(4) == 3.0

    def test_the_length_of_a_draft_follows_the_measured_costs(self):
        def measured(seconds) -> Speculator:
            speculator = Speculator()
            for n_tokens in range(1, 9):
                for _ in range(2):
                    speculator.record_seconds(n_tokens, seconds(n_tokens))
            for _ in range(30):  # and a high acceptance rate
                proposed(speculator, [1, 2, 1, 2, 1], 7)
                speculator.observe_accepted([2])
            return speculator

        expensive, free = measured(lambda n: 5.0 * n - 4), measured(lambda _n: 1.0)
        assert proposed(expensive, [1, 2, 1, 2, 1], 7) == []
        assert len(proposed(free, [1, 2, 1, 2, 1], 7)) == 7
        assert len(proposed(Speculator(1), [1, 2, 1, 2, 1], 7)) == 1

    @pytest.mark.parametrize(("cost", "accepted", "expected"), [(0.3, 40, 1), (0.9, 40, 0), (0.3, 0, 0)])
    def test_the_draft_model_is_asked_where_it_costs_less_than_it_saves(self, cost, accepted, expected):
        class Model:
            asked = 0

            def is_worth_it(self, _tokens_left):
                return True

            def draft(self, _token, _cache, n):
                self.asked += 1
                return [0] * n

        model = Model()
        speculator = Speculator(draft_model=model)
        for n_tokens in range(1, 9):
            for _ in range(2):
                speculator.record_seconds(n_tokens, 1.0)
                speculator.record_seconds(n_tokens, 1.0, by_draft_model=True)
        for token in [0] * accepted or [1] * 40:
            proposed(speculator, [1, 2, 3, 4], 7)
            speculator.observe_accepted([token])
        for n_tokens in range(2, 9):  # the costs that count from now on, above the drift of the old ones
            for _ in range(200):
                speculator.record_seconds(n_tokens, 1 + (cost + 0.15) * (n_tokens - 1), by_draft_model=True)
        model.asked = 0
        assert bool(proposed(speculator, [1, 2, 3, 4], 7)) == expected
        assert model.asked == expected

    def test_what_the_text_gives_goes_first_since_it_costs_nothing(self):
        speculator = Speculator(draft_model=None)
        for _ in range(40):
            proposed(speculator, [1, 2, 1, 2, 1], 3)
            speculator.observe_accepted([2, 1, 2])
        assert proposed(speculator, [1, 2, 1, 2, 1], 3) == [2, 1, 2]


def proposed(speculator: Speculator, ids: list[int], n_most: int) -> list[int]:
    """Return a proposal for a text of which the cache holds all but the last token."""
    cache = KVCache(config(), 1, CONTEXT)
    cache.lengths = [len(ids) - 1]
    return speculator.propose(ids, n_most, cache, 1000)
