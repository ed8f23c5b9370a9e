"""Every kind of model in float32 and float64, against a naive one; batches of rows of any length."""

import random

import numpy as np
import pytest

from gptcli.decode.engine import ForwardRequest
from gptcli.engine.native.model import NativeModel
from tests.engine.models import native_engine
from tests.models import lively_model, tiny_config
from tests.naive import naive_logits

MIXTURE = {"feed_forward": "moe", "n_experts": 5, "ffn_dim": 30}
KINDS = {
    "mlp": {"activation": "gelu"},
    "unbiased norm, no biases": {"norm_unbiased": True, "qkv_bias": False, "ffn_bias": False},
    **{
        kind: {"feed_forward": kind, "ffn_dim": 37}
        for kind in ("glu", "bilinear", "reglu", "geglu", "swiglu")
    },
    "learned swish": {"activation": "swish", "swish_learn_beta": True, "swish_beta": 1.5},
    "gated learned swish": {"feed_forward": "swiglu", "activation": "swish", "swish_learn_beta": True},
    "mixture": MIXTURE,
    "mixture of one": MIXTURE | {"n_experts_per_token": 1},
    "mixture of all": MIXTURE | {"n_experts_per_token": 5, "expert_feed_forward": "mlp"},
    "mixture with shared experts": MIXTURE | {"n_shared_experts": 2, "expert_feed_forward": "glu"},
    "mixture with a learned swish": MIXTURE
    | {"n_shared_experts": 1, "activation": "swish", "swish_learn_beta": True, "swish_beta": 0.75},
}


def kernels_and_reference(changes: dict) -> tuple[NativeModel, list[int], np.ndarray]:
    """Return a model's kernels, 60 tokens, and the naive model's logits [60, V] in float64."""
    config = tiny_config(**{"emb_dim": 28, "context_length": 64} | changes)
    model = lively_model(config, 3)
    ids = [int(i) for i in np.random.default_rng(1).integers(0, config.vocab_size, 60)]
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return native_engine(model)._model, ids, naive_logits(config, state, ids)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_the_logits_are_those_of_the_naive_model(changes: dict) -> None:
    model, ids, expected = kernels_and_reference(changes)
    for dtype, tolerance in ((np.float32, 3e-5), (np.float64, 2e-13)):
        for pieces in ([60], [1, 2, 17, 40]):
            cache, first = model.new_cache(1, 60, dtype), 0
            for n in pieces:
                logits = model.forward([ids[first : first + n]], cache, n_logits=[n])
                assert logits.dtype == dtype
                difference = np.abs(logits - expected[first : first + n]).max()
                assert difference < tolerance * np.ptp(expected), (dtype, pieces, first, difference)
                first += n


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("name", ["mlp", "swiglu", "mixture with shared experts"])
def test_rows_of_a_batch_get_the_logits_that_they_get_alone(name: str) -> None:
    model, ids, expected = kernels_and_reference(KINDS[name])
    draw, cache = random.Random(0), model.new_cache(0, 60)
    held = list[int]()
    for _ in range(25):
        first_row = draw.randrange(len(held) + 1) if draw.random() < 0.3 else 0
        n_rows = (
            draw.randrange(1, 9) if first_row == len(held) else draw.randrange(1, len(held) - first_row + 2)
        )
        held += [0] * (first_row + n_rows - len(held))
        rows = range(first_row, first_row + n_rows)
        new = [draw.choice((1, 1, 2, 5, 20)) for _ in rows]
        for row, n in zip(rows, new, strict=True):
            if held[row] + n > 60:
                held[row] = draw.randrange(3) if row < len(cache.rows) else 0
                cache.truncate(held[row], row)
        n_logits = [draw.randrange(n + 1) for n in new]
        pieces = [ids[held[row] : held[row] + n] for row, n in zip(rows, new, strict=True)]
        logits = model.forward(pieces, cache, first_row=first_row, n_logits=n_logits)
        wanted = []
        for row, n, k in zip(rows, new, n_logits, strict=True):
            held[row] += n
            wanted.append(expected[held[row] - k : held[row]])
        assert np.abs(logits - np.concatenate(wanted)).max(initial=0) < 3e-5 * np.ptp(expected)
        assert cache.lengths == held
        if draw.random() < 0.3:  # the last row takes the place of another
            row = draw.randrange(len(held))
            cache.remove(row)
            last = held.pop()
            if row < len(held):
                held[row] = last


def test_many_more_tokens_than_a_pass_takes_are_cut_into_passes() -> None:
    config = tiny_config(context_length=400)
    engine = native_engine(lively_model(config))
    prompts = [[(7 * i + j) % 97 for j in range(n)] for i, n in enumerate((300, 1, 255, 2, 400))]
    together = engine.forward(ForwardRequest(prompts, engine.new_cache(0, 400)))
    for prompt, logits in zip(prompts, together, strict=True):
        alone = engine.forward(ForwardRequest([prompt]))[0]
        assert np.abs(logits - alone).max() < 3e-5 * np.ptp(alone)


def test_the_float64_logits_go_on_from_the_last_near_tie() -> None:
    model = lively_model(tiny_config(context_length=64))
    engine = native_engine(model)
    ids = [(5 * i) % 97 for i in range(60)]
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = naive_logits(model.config, state, ids)
    cache = engine.new_cache(2, 64)
    cache.rows[1].length = 60
    for n in (3, 4, 30, 60):  # row 1 of a cache, and without one
        assert np.abs(engine.exact_logits(ids[:n], cache, 1) - expected[n - 1]).max() < 1e-12
        assert np.abs(engine.exact_logits(ids[:n]) - expected[n - 1]).max() < 1e-12
        assert cache.exact(1).length == n
    cache.truncate(10, 1)
    changed = [*ids[:10], 1, 2]
    assert np.abs(engine.exact_logits(changed, cache, 1) - engine.exact_logits(changed)).max() < 1e-12
