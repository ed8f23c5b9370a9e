"""Speculation: it never changes the ids, and it drafts where that pays."""

import random

import numpy as np
import pytest
import torch

from gptcli.decode.prompt_lookup import PromptLookup
from gptcli.decode.speculation import Speculator
from gptcli.engine.native.model import NativeModel
from gptcli.model.cache import KVCache
from tests.decode.scripted import ScriptedSpeculator
from tests.decoding import decode_ids, decode_tokens
from tests.engine.models import CONTEXT, VOCABULARY, by_columns, config, native_engine
from tests.models import lively_model


class TestSpeculation:
    def test_drafts_never_change_the_ids_of_hundreds_of_prompts(self, tmp_path):
        """Decode text that loops, to the last token and past the end of the context."""
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
    def test_any_share_of_right_draft_tokens_gives_the_same_ids(self, wrong_every):
        model = lively_model(config())
        engine = native_engine(model)
        whole = [3, *(s.token_id for s in decode_tokens(model, [3], 200))]
        speculator = ScriptedSpeculator(whole, wrong_every)
        steps = list(decode_tokens(model, [3], 200, engine=engine, speculator=speculator, logprobs=True))
        assert [step.token_id for step in steps] == whole[1:]
        assert speculator.n_proposed > 30
        plain = [step.logprob for step in decode_tokens(model, [3], 200, logprobs=True)]
        assert [step.logprob for step in steps] == pytest.approx(plain, abs=1e-4)

    def test_near_ties_are_decided_alike_with_and_without_drafts(self, monkeypatch):
        model = lively_model(config())
        with torch.no_grad():  # every token has a twin, closer than the engine's error
            model.out_head.weight[60:] = model.out_head.weight[:60] * (1 + 2e-6)
        engine = native_engine(model)
        real, draw = NativeModel.forward, np.random.default_rng(0)

        def rounded(self, ids, cache, **options):
            logits = real(self, ids, cache, **options)
            noise = draw.standard_normal(logits.shape, dtype=np.float32)
            return logits if logits.dtype == np.float64 else logits * (1 + np.float32(2e-6) * noise)

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

    def test_a_caller_may_stop_within_a_draft(self):
        model = lively_model(config())
        engine = native_engine(model)
        whole = [3, *(s.token_id for s in decode_tokens(model, [3], 40))]
        for n in range(1, 12):
            steps = decode_tokens(model, [3], 40, engine=engine, speculator=ScriptedSpeculator(whole, 0))
            assert [next(steps).token_id for _ in range(n)] == whole[1 : n + 1]
            steps.close()

    def test_the_command_prints_the_same_text(self, cli):
        """Run the stories model, with a stop string and end of text among the draft tokens."""
        base = ("generate", "the king said to the king said to the king said", "-n", 90, "-q")
        for options in ((), ("--stop", "said"), ("--ignore-eos",), ("--overflow", "stop", "-n", 400)):
            plain = cli(*base, *options, "--speculate", "off").out
            assert cli(*base, *options).out == plain
            assert cli(*base, *options, "--draft-tokens", 2, "--threads", 1).out == plain


class TestPromptLookup:
    def test_the_draft_is_what_followed_before_even_through_a_loop(self):
        assert PromptLookup().propose([1, 2, 3], 4) == []
        assert PromptLookup().propose([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
        assert PromptLookup().propose([7, 1, 2, 7, 1, 2], 7) == [7, 1, 2, 7, 1, 2, 7]
        assert PromptLookup().propose([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2], 2) == [8, 6]  # the longer match wins

    def test_a_growing_text_gives_the_drafts_of_the_whole_text(self):
        draw = random.Random(0)
        ids = [draw.randrange(4) for _ in range(300)]
        growing = PromptLookup()
        for end in range(1, 300):
            assert growing.propose(ids[:end], 5) == PromptLookup().propose(ids[:end], 5)


class CountingModel:
    """A draft model that drafts the same tokens again and again, and counts how often it is asked."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.asked = tokens, 0

    def is_worth_it(self, _tokens_left):
        return True

    def draft(self, _token, _cache, n):
        self.asked += 1
        return list(self.tokens * n)[:n]


class TestSpeculator:
    def test_drafting_stops_while_drafts_are_wrong_and_resumes_when_they_are_right(self):
        speculator, ids = Speculator(), [1, 2, 1, 2, 1, 2]
        lengths = []
        for _ in range(40):
            lengths.append(len(proposed(speculator, ids, 7)))
            speculator.observe_accepted([50])  # never the draft token
        assert lengths[0] > 0
        assert lengths[30:] == [0] * 10
        for _ in range(40):
            lengths.append(len(proposed(speculator, ids, 7)))
            speculator.observe_accepted([1])
        assert lengths[-1] == 7

    def test_step_costs_are_measured_while_decoding_unless_measures_is_false(self):
        model = lively_model(config())
        assumed = Speculator().relative_cost(2)
        for measures in (True, False):
            speculator = Speculator(1, measures=measures)  # at most one draft token, so steps of two
            decode_ids(model, [1, 2, 1, 2, 1, 2], 50, engine=native_engine(model), speculator=speculator)
            assert (speculator.relative_cost(2) != assumed) == measures

    def test_a_step_costs_its_least_measured_time_without_the_first_run(self):
        speculator = Speculator()
        for n_tokens, seconds in ((1, 9.0), (1, 2.0), (1, 1.0), (4, 99.0), (4, 3.0)):
            speculator.record_seconds(n_tokens, seconds)
        assert speculator.relative_cost(4) == 3.0

    def test_the_draft_length_follows_the_measured_costs(self):
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
    def test_the_draft_model_is_used_where_it_costs_less_than_it_saves(self, cost, accepted, expected):
        model = CountingModel(0)
        speculator = Speculator(draft_model=model)
        for n_tokens in range(1, 9):
            for _ in range(2):
                speculator.record_seconds(n_tokens, 1.0)
                speculator.record_seconds(n_tokens, 1.0, by_draft_model=True)
        for token in [0] * accepted or [1] * 40:
            proposed(speculator, [1, 2, 3, 4], 7)
            speculator.observe_accepted([token])
        for n_tokens in range(2, 9):  # repeated, since old costs drift up slowly
            for _ in range(200):
                speculator.record_seconds(n_tokens, 1 + (cost + 0.15) * (n_tokens - 1), by_draft_model=True)
        model.asked = 0
        assert bool(proposed(speculator, [1, 2, 3, 4], 7)) == expected
        assert model.asked == expected

    def test_prompt_lookup_is_preferred_since_it_costs_nothing(self):
        model = CountingModel(2, 1)  # right as often as prompt lookup
        assert proposed(Speculator(draft_model=model), [1, 2, 3], 3) == [2, 1, 2]
        assert model.asked == 1
        speculator = Speculator(draft_model=model)
        for _ in range(40):
            proposed(speculator, [1, 2, 1, 2, 1], 3)
            speculator.observe_accepted([2, 1, 2])
        model.asked = 0
        assert proposed(speculator, [1, 2, 1, 2, 1], 3) == [2, 1, 2]
        assert model.asked == 0


def proposed(speculator: Speculator, ids: list[int], n_most: int) -> list[int]:
    """Return the draft for a text when the cache holds all but its last token."""
    cache = KVCache(config(), 1, CONTEXT)
    cache.lengths = [len(ids) - 1]
    return speculator.propose(ids, n_most, cache, 1000)
