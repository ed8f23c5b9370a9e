"""The bound of the int8 head, by rational arithmetic."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from gptcli.decode.near_ties import scale_of
from gptcli.engine.native.arrays import Array
from gptcli.engine.native.model import NativeModel
from gptcli.engine.native.quantize import quantize_head
from gptcli.model.quantize import to_int8
from tests.engine.native.kernels import linear
from tests.engine.native.models import random_parameters, tiny_sizes

TOLERANCE = 3e-5  # near ties, relative to the largest magnitude

# Products of smaller numbers underflow, which a bound relative to |W|·|x| does not cover.
NUMBERS = st.one_of(
    st.floats(-1e4, 1e4, width=32).map(lambda value: value if abs(value) > 1e-9 else 0.0),
    st.sampled_from([0.0, 1.0, -1.0, 127.0, 126.5, 0.5, 63.5, -0.49999997, 1e-3]),
)


def exact(x: Array, row: Array) -> Fraction:
    """Return a product of float32 numbers without rounding."""
    return sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, row, strict=True)), Fraction(0))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_bound_holds_for_any_row_and_vector(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    weight = data.draw(st_numpy.arrays(np.float32, (3, n), elements=NUMBERS))
    x = data.draw(st_numpy.arrays(np.float32, (1, n), elements=NUMBERS))
    if data.draw(st.booleans()):  # a vector along what rounding took away: the worst there is
        rows, scale, _ = quantize_head(weight)
        x = (weight[:1] - rows[:1] * scale[0]).astype(np.float32)
        x[np.abs(x) < 1e-9] = 0
    rows, scale, bound = quantize_head(weight)
    approximate, full = linear(x, rows, scale=scale)[0], linear(x, weight)[0]
    square = exact(x[0], x[0])
    for j in range(3):
        error = max(
            abs(Fraction(float(approximate[j])) - exact(x[0], weight[j])),
            abs(Fraction(float(approximate[j])) - Fraction(float(full[j]))),
        )
        assert error**2 <= Fraction(float(bound[j])) ** 2 * square


def test_the_bound_is_not_much_larger_than_it_must_be() -> None:
    weight = np.random.default_rng(0).standard_normal((50, 300)).astype(np.float32)
    rows, scale, bound = quantize_head(weight)
    lost = np.linalg.norm(weight - rows * scale[:, None], axis=1)
    assert (bound >= lost).all()
    assert (bound <= 1.02 * lost).all()


def test_the_largest_logits_and_all_near_them_are_exact() -> None:
    sizes = tiny_sizes(vocab_size=5000)
    parameters = random_parameters(sizes)
    head = parameters["tok_emb.weight"].copy()
    head[3000:3010] = head[17] * (1 + 1e-6 * np.arange(10, dtype=np.float32)[:, None])  # near ties
    parameters["out_head.weight"] = head
    engine = NativeModel(sizes, parameters, 2, TOLERANCE)
    ids = list(range(0, 5000, 50))
    full = engine.forward([ids], engine.new_cache(1, 100), n_logits=[16])
    engine.build_int8_head()
    quick = engine.forward([ids], engine.new_cache(1, 100), n_logits=[16], argmax_only=True)
    margin = 2 * TOLERANCE * scale_of(full.min(1), full.max(1))[:, None]
    is_near = full >= full.max(axis=1, keepdims=True) - margin
    assert (np.abs(quick - full)[is_near] <= 1e-6 * np.abs(full).max()).all()
    assert np.array_equal(quick.argmax(axis=1), full.argmax(axis=1))
    assert (quick != full).mean() > 0.5, "most rows are not computed again"


def quick_and_full(head: Array, x: Array) -> tuple[Array, Array]:
    """Return the logits [V] of the int8 head and of the head itself [V, C] for x [C], through an engine."""
    sizes = tiny_sizes(vocab_size=len(head), emb_dim=len(x), n_heads=1, ffn_dim=4, n_layers=1)
    parameters = random_parameters(sizes) | {"out_head.weight": head}
    parameters |= {"final_norm.scale": np.zeros_like(x), "final_norm.shift": x}  # the norm gives x
    engine = NativeModel(sizes, parameters, 1, TOLERANCE)
    full = engine.forward([[0]], engine.new_cache(1, 1))[0]
    engine.build_int8_head()
    return engine.forward([[0]], engine.new_cache(1, 1), argmax_only=True)[0], full


def test_a_largest_logit_that_int8_makes_as_small_as_it_can_is_found() -> None:
    random, n_tried = np.random.default_rng(0), 0
    for _ in range(40):
        winner = random.standard_normal(60).astype(np.float32)
        rows, scale = to_int8(winner[None])
        x = winner - rows[0] * scale[0]  # what int8 loses lies along x: the worst there is
        loss, logit = x @ x, winner @ x
        exact_row = np.sign(x) * 127  # int8 loses nothing of it
        other = exact_row * ((logit - 0.1 * loss) / (exact_row @ x))
        if logit <= loss:
            continue
        n_tried += 1
        quick, full = quick_and_full(np.stack([np.zeros(60), other, winner]).astype(np.float32), x)
        assert full.argmax() == 2
        assert quick[2] == full[2]
    assert n_tried > 5


def test_logits_within_the_near_tie_margin_are_exact_even_if_int8_tells_them_apart() -> None:
    x = np.array([1.1, 0.7, -0.3, 1.9], np.float32)
    row = np.array([127, 45, -88, 101], np.float32) / 311  # int8 loses next to nothing, so the bound is small
    head = row * (1 - np.linspace(0, 1.9 * TOLERANCE, 200, dtype=np.float32))[:, None]
    quick, full = quick_and_full(np.concatenate([head, 0 * head[:1]]), x)
    assert np.array_equal(quick[:200], full[:200])
