"""The int8 copy as a draft model: it drafts, float32 decides."""

import random

import numpy as np
import pytest
import torch

from gptcli.decode.engine import ForwardRequest
from gptcli.decode.speculation import Speculator
from gptcli.engine.native import draft as draft_module
from gptcli.model.int8 import quantize_int8
from tests.decoding import decode_ids
from tests.engine.models import CONTEXT, VOCABULARY, by_columns, config, native_engine
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


def test_it_never_shows_in_the_ids_of_hundreds_of_prompts(tmp_path):
    draw = random.Random(1)
    right = checked = 0
    for model in (lively_model(config()), by_columns(lively_model(config(tie_embeddings=True)), tmp_path)):
        engine = native_engine(model)
        engine.draft_model.prepare()
        for _ in range(100):
            prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, CONTEXT + 6))]
            n = draw.choice((1, 2, 7, 30, 80))
            plain = decode_ids(model, prompt, n)
            counting = CountingDraftModel(engine.draft_model, prompt + plain)
            alone = Speculator(lookup=False, draft_model=counting)
            assert decode_ids(model, prompt, n, engine=engine, speculator=alone) == plain
            both = Speculator(draft_model=engine.draft_model)
            assert decode_ids(model, prompt, n, engine=engine, speculator=both) == plain
            right, checked = right + counting.n_right, checked + counting.n_checked
    assert checked > 1000
    assert 0.8 < right / checked < 1


def test_it_leaves_the_cache_and_the_parameters_as_they_were():
    model = lively_model(config())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = native_engine(model)
    engine.draft_model.prepare()
    cache = engine.new_cache(1, CONTEXT)
    engine.forward(ForwardRequest([[1, 2, 3]], cache))
    held = cache.rows[0].data[:, :, :, :3].copy()
    assert len(engine.draft_model.draft(4, cache, 5)) == 5
    assert cache.length == 3
    assert np.array_equal(cache.rows[0].data[:, :, :, :3], held)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_it_is_made_for_long_texts_alone_and_for_float32(monkeypatch):
    model = lively_model(config())
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr(draft_module, "QUANTIZED_BYTES_PER_SECOND", n_bytes)  # takes a second
    monkeypatch.setattr(draft_module, "SAVED", 0.2)
    engine = native_engine(model)
    assert not engine.draft_model.is_worth_it(10**9)  # no step was timed
    engine.step_seconds = 0.05  # so it saves 0.01 s a token
    assert not engine.draft_model.is_worth_it(99)
    assert not engine.draft_model.is_ready
    assert engine.draft_model.is_worth_it(101)
    assert engine.draft_model.is_worth_it(1)
    for other in (native_engine(model, quantize=True), native_engine(lively_model(config()).bfloat16())):
        other.step_seconds = 1e9
        assert not other.draft_model.is_worth_it(100)


def test_its_weights_are_those_of_the_int8_model_in_pytorch():
    model = lively_model(config(tie_embeddings=True))
    quantized = draft_module.quantize_parameters(
        {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    )
    for name, tensor in quantize_int8(lively_model(config(tie_embeddings=True))).state_dict().items():
        assert np.array_equal(quantized[name], tensor.numpy()), name


def test_the_command_prints_the_same_text_and_says_where_it_cannot(cli):
    base = ("generate", "Once upon a time", "-n", 60)
    plain = cli(*base, "-q", "--speculate", "off").out
    result = cli(*base, "--speculate", "self", "--stats")
    assert (result.status, result.out) == (0, plain)
    assert ", int8 draft model" in result.err
    for options, why in (
        (("--quantize", "int8"), "for float32 weights"),
        (("--dtype", "bfloat16"), "for float32 weights"),
        (("--engine", "torch"), "by the native kernels"),
    ):
        result = cli(*base, "-q", "--speculate", "self", *options)
        assert result.status == 2
        assert why in result.err


@pytest.mark.parametrize(
    ("dtype", "quantize"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.float16, False), (torch.float32, True)],
    ids=str,
)
def test_every_kind_of_weights_decodes(dtype, quantize):
    model = lively_model(config()).to(dtype)
    assert len(decode_ids(model, [1, 2], 9, engine=native_engine(model, quantize=quantize))) == 9
