"""The int8 copy as a draft model: it drafts, float32 decides."""

import random
import threading

import torch

from gptcli.decode.speculation import Speculator
from gptcli.engine import guesser as guesser_module
from gptcli.engine.cpu import CpuEngine
from gptcli.engine.switch import Switch
from gptcli.model.int8 import int8_copy, quantize_int8
from tests.decoding import decode_ids
from tests.engine.models import CONTEXT, VOCABULARY, by_columns, config, ready_switch
from tests.models import lively_model


class CountingDraftModel:
    """A draft model that counts its tokens up to the first wrong one, and those that are right."""

    def __init__(self, model, whole: list[int]) -> None:
        self._model, self._whole = model, whole
        self.n_checked = self.n_right = 0

    def is_worth_it(self, tokens_left: int) -> bool:
        return self._model.is_worth_it(tokens_left)

    def draft(self, token: int, cache, n: int) -> list[int]:
        draft = self._model.draft(token, cache, n)
        for drafted, expected in zip(draft, self._whole[cache.length + 1 :], strict=False):
            self.n_checked += 1
            self.n_right += drafted == expected
            if drafted != expected:
                break
        return draft


class TestInt8Copy:
    """The int8 copy drafts, float32 decides."""

    def test_drafts_never_change_the_ids_of_hundreds_of_prompts(self, tmp_path):
        draw = random.Random(1)
        right = checked = 0
        for model in (
            lively_model(config()),
            by_columns(lively_model(config(tie_embeddings=True)), tmp_path),
        ):
            switch = ready_switch(model)
            switch.guesser.prepare(wait=True)
            for _ in range(100):
                prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, CONTEXT + 6))]
                n = draw.choice((1, 2, 7, 30, 80))
                plain = decode_ids(model, prompt, n)
                counting = CountingDraftModel(switch.guesser, prompt + plain)
                alone = Speculator(lookup=False, draft_model=counting)
                assert decode_ids(model, prompt, n, engine=switch, speculator=alone) == plain
                both = Speculator(draft_model=switch.guesser)
                assert decode_ids(model, prompt, n, engine=switch, speculator=both) == plain
                right, checked = right + counting.n_right, checked + counting.n_checked
        assert checked > 1500
        assert 0.8 < right / checked < 1

    def test_leaves_the_cache_and_the_model_as_they_were(self):
        model = lively_model(config())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        switch = ready_switch(model)
        switch.guesser.prepare(wait=True)
        cache = model.new_cache(1, CONTEXT)
        with torch.inference_mode():
            model(torch.tensor([[1, 2, 3]]), cache)
            held = cache.data[..., :3, :].clone()
            assert len(switch.guesser.draft(4, cache, 5)) == 5
        assert cache.length == 3
        assert cache.data[..., :3, :].equal(held)
        assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
        copy = int8_copy(model)
        assert copy.tok_emb.weight is model.tok_emb.weight or copy.tok_emb.weight.equal(model.tok_emb.weight)
        assert copy.tok_emb.weight.data_ptr() == model.tok_emb.weight.data_ptr()

    def test_may_share_an_int8_head_that_is_there(self):
        model = lively_model(config())
        weight, scale = ready_switch(model).engine.int8_head
        apart, shared = int8_copy(model).out_head, int8_copy(model, (weight, scale)).out_head
        assert shared.weight.data_ptr() == weight.data_ptr()
        assert shared.weight.equal(apart.weight)
        assert shared.scale.equal(apart.scale)
        assert CpuEngine(model, 2).int8_head is None

    def test_is_made_for_long_texts_alone_and_for_float32(self, monkeypatch):
        model = lively_model(config())
        n_bytes = sum(parameter.nbytes for parameter in model.parameters())
        monkeypatch.setattr(guesser_module, "COPIED_BYTES_PER_SECOND", n_bytes)  # takes a second
        monkeypatch.setattr(guesser_module, "SAVED", 0.2)
        switch = ready_switch(model)
        monkeypatch.setattr(Switch, "step_seconds", 0.05)  # so saves 0.01 s a token
        assert not switch.guesser.is_worth_it(99)
        assert not switch.guesser.is_ready
        switch.guesser.is_worth_it(101)
        switch.guesser.prepare(wait=True)
        assert switch.guesser.is_worth_it(1)
        assert switch.describe().endswith(", int8 draft model")
        for other in (quantize_int8(lively_model(config())), lively_model(config()).bfloat16()):
            switch = ready_switch(other)
            before = threading.active_count()
            monkeypatch.setattr(Switch, "step_seconds", 1e9)
            assert not switch.guesser.is_worth_it(100)
            assert threading.active_count() == before

    def test_the_command_prints_the_same_text_and_says_where_it_cannot(self, cli):
        base = ("generate", "Once upon a time", "-n", 60)
        plain = cli(*base, "-q", "--speculate", "off").out
        result = cli(*base, "--speculate", "self", "--stats")
        assert (result.status, result.out) == (0, plain)
        assert ", int8 draft model" in result.err
        for options, why in (
            (("--quantize", "int8"), "needs float32 weights"),
            (("--dtype", "bfloat16"), "needs float32 weights"),
            (("-p", "gpt-124m-moe", "--set", "n_layers=1", "--set", "emb_dim=24"), "has no kernel"),
        ):
            result = cli(*base, "-q", "--speculate", "self", *options)
            assert (result.status, result.out) == (2, "")
            assert why in result.err
