"""The native engine as a whole, against transformers in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.engine.native.arrays import Array, widen
from gptcli.engine.native.engine import MIN_TOKENS_FOR_INT8_HEAD
from gptcli.engine.native.model import NativeModel
from gptcli.engine.native.quantize import quantize_head
from gptcli.model.quantize import to_int8
from tests.decoding import decode_ids
from tests.engine.models import native_engine
from tests.engine.native.kernels import stored
from tests.engine.native.models import decode_greedy, random_parameters, tiny_sizes
from tests.models import lively_model, tiny_config

SIZES = tiny_sizes()
PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, SIZES.vocab_size, 20)]
HF_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}


def reference_logits(sizes: tiny_sizes, parameters: dict[str, Array], ids: list[int]) -> Any:
    """Return transformers' float64 logits [T, V] for the numbers that the parameters hold."""
    config = GPT2Config(
        vocab_size=sizes.vocab_size,
        n_positions=sizes.context_length,
        n_embd=sizes.emb_dim,
        n_head=sizes.n_heads,
        n_layer=sizes.n_layers,
        n_inner=sizes.ffn_dim,
        activation_function=HF_ACTIVATIONS[sizes.activation],
        layer_norm_epsilon=sizes.norm_eps,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    numbers = {}
    for name, value in parameters.items():
        if value.dtype == np.int8:
            numbers[name] = value * parameters[name.replace("weight", "scale")].astype(np.float64)[:, None]
        else:
            numbers[name] = widen(value).astype(np.float64)
    head = numbers.get("out_head.weight", numbers["tok_emb.weight"])
    state = {"transformer.wte.weight": numbers["tok_emb.weight"], "lm_head.weight": head}
    state["transformer.wpe.weight"] = numbers["pos_emb.weight"]
    names = {"norm1": "ln_1", "norm2": "ln_2", "att.out_proj": "attn.c_proj"}
    names |= {"ff.layers.0": "mlp.c_fc", "ff.layers.2": "mlp.c_proj"}
    for layer in range(sizes.n_layers):
        block, target = f"trf_blocks.{layer}", f"transformer.h.{layer}"
        for kind in ("weight", "bias"):
            qkv = [numbers[f"{block}.att.W_{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"{target}.attn.c_attn.{kind}"] = np.concatenate(qkv).T
            for ours, theirs in names.items():
                norm_kind = {"weight": "scale", "bias": "shift"}[kind]
                value = numbers[f"{block}.{ours}.{norm_kind if 'norm' in ours else kind}"]
                state[f"{target}.{theirs}.{kind}"] = value.T
    for kind, ours in (("weight", "scale"), ("bias", "shift")):
        state[f"transformer.ln_f.{kind}"] = numbers[f"final_norm.{ours}"]
    model = GPT2LMHeadModel(config).double().eval()
    model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("columns", [False, True])
def test_greedy_ids_are_those_of_transformers_in_float64(columns: bool) -> None:
    parameters = random_parameters(SIZES, columns=columns)
    reference: list[int] = []
    for n_threads in (1, 2, 3, 4):
        for int8_head in (False, True):
            engine = NativeModel(SIZES, parameters, n_threads)
            if int8_head:
                engine.build_int8_head()
            ids = decode_greedy(engine, PROMPT, 120, argmax_only=int8_head)
            if not reference:
                logits = reference_logits(SIZES, parameters, PROMPT + ids)
                reference = logits[len(PROMPT) - 1 : -1].argmax(axis=1).tolist()
                assert len(set(reference)) > 20, "a text of few tokens shows little"
            assert ids == reference, (n_threads, int8_head)


@pytest.mark.parametrize("activation", HF_ACTIVATIONS)
@pytest.mark.parametrize("columns", [False, True])
def test_logits_are_those_of_float64_however_the_tokens_come(activation: str, columns: bool) -> None:
    sizes = tiny_sizes(activation=activation)
    parameters = random_parameters(sizes, columns=columns, seed=1)
    ids = [int(i) for i in np.random.default_rng(1).integers(0, sizes.vocab_size, 390)]
    expected = reference_logits(sizes, parameters, ids)
    engine = NativeModel(sizes, parameters, 2)
    for pieces in ([390], [1, 2, 3, 5, 8, 16, 17, 64, 1, 273], [300, 90]):
        cache, first = engine.new_cache(1, 390), 0
        for n in pieces:
            n_logits = min(n, 290)
            logits = engine.forward([ids[first : first + n]], cache, n_logits=[n_logits])
            first += n
            assert np.abs(logits - expected[first - n_logits : first]).max() < 2e-5, (pieces, first)
        assert cache.length == 390


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [("uint16", False), ("uint16", True), ("float16", False), ("float16", True), ("int8", False)],
)
def test_other_dtypes_are_computed_in_float32_from_what_is_stored(dtype: str, columns: bool) -> None:
    parameters = random_parameters(SIZES, columns=columns, seed=2)
    for name, value in list(parameters.items()):
        if dtype != "int8":
            turned = stored(np.ascontiguousarray(value.T), dtype)
            parameters[name] = turned.T if columns and "trf" in name else np.ascontiguousarray(turned.T)
        elif name.endswith(".weight") and "emb" not in name:
            parameters[name], parameters[name.replace("weight", "scale")] = to_int8(value)
    if dtype == "int8":
        rows, scale = to_int8(parameters["tok_emb.weight"])
        parameters |= {"out_head.weight": rows, "out_head.scale": scale}
    ids = decode_greedy(NativeModel(SIZES, parameters, 2), PROMPT, 100)
    expected = reference_logits(SIZES, parameters, PROMPT + ids)
    engine = NativeModel(SIZES, parameters, 3)
    engine.build_int8_head()
    cache = engine.new_cache(1, 200)
    logits = engine.forward([PROMPT + ids], cache, n_logits=[120])
    assert np.abs(logits - expected).max() < 2e-5
    assert ids == expected[19:-1].argmax(axis=1).tolist()
    assert decode_greedy(engine, PROMPT, 100, argmax_only=True) == ids


def test_biases_and_an_own_head_may_be_there_or_not() -> None:
    parameters = random_parameters(SIZES)
    bare = {name: value for name, value in parameters.items() if not name.endswith(".bias")}
    zeros = {
        name: np.zeros_like(value) if name.endswith(".bias") else value for name, value in parameters.items()
    }
    own = {"out_head.weight": parameters["tok_emb.weight"][::-1].copy()}
    a = NativeModel(SIZES, bare | own, 2)
    b = NativeModel(SIZES, zeros, 2)
    logits = a.forward([PROMPT], a.new_cache(1, 20), n_logits=[20])
    assert np.array_equal(logits[:, ::-1], b.forward([PROMPT], b.new_cache(1, 20), n_logits=[20]))
    assert not np.array_equal(
        logits, NativeModel(SIZES, parameters | own, 2).forward([PROMPT], a.new_cache(1, 20), n_logits=[20])
    )


def test_the_int8_head_is_made_once_and_only_for_a_long_text(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(
        "gptcli.engine.native.model.quantize_head", lambda weight: made.append(1) or quantize_head(weight)
    )
    model = lively_model(tiny_config(context_length=256, vocab_size=300))
    engine = native_engine(model)
    for n_tokens, n_made in ((MIN_TOKENS_FOR_INT8_HEAD, 0), (150, 1), (150, 1)):
        decode_ids(model, [1, 2], n_tokens, engine=engine)
        assert len(made) == n_made


def test_a_truncated_cache_goes_on_as_if_the_rest_had_not_been() -> None:
    engine = NativeModel(SIZES, random_parameters(SIZES), 2)
    cache = engine.new_cache(1, 64)
    first = engine.forward([PROMPT], cache)
    engine.forward([[1, 2, 3]], cache, n_logits=[3])
    cache.truncate(len(PROMPT) - 1)
    assert np.array_equal(engine.forward([PROMPT[-1:]], cache).argmax(), first.argmax())
    with pytest.raises(ValueError, match="cannot truncate a sequence of 20 tokens to 21"):
        cache.truncate(21)


def test_nan_in_a_weight_shows_in_the_logits() -> None:
    parameters = random_parameters(SIZES)
    parameters["trf_blocks.1.ff.layers.0.weight"][3, 4] = np.nan
    engine = NativeModel(SIZES, parameters, 2)
    engine.build_int8_head()
    for argmax_only in (False, True):
        logits = engine.forward([PROMPT], engine.new_cache(1, 20), n_logits=[3], argmax_only=argmax_only)
        assert np.isnan(logits).all()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_row_of_the_head_that_is_not_finite_is_never_hidden_by_the_int8_head(number: float) -> None:
    parameters = random_parameters(SIZES)
    parameters["out_head.weight"] = parameters["tok_emb.weight"].copy()
    parameters["out_head.weight"][17, 5] = number
    engine = NativeModel(SIZES, parameters, 2)
    engine.build_int8_head()
    logits = engine.forward([PROMPT], engine.new_cache(1, 20), n_logits=[2], argmax_only=True)
    assert np.flatnonzero(~np.isfinite(logits[0])).tolist() == [17]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tok_emb.weight": np.zeros((300, 60), np.float32)}, r"expected numbers \[301, 60\]"),
        ({"tok_emb.weight": np.zeros((301, 60), np.float64)}, "has float64"),
        ({"tok_emb.weight": np.zeros((60, 301), np.float32).T}, "by rows"),
        ({"trf_blocks.0.att.out_proj.weight": np.zeros((60, 120), np.float32)[:, ::2]}, "neither by rows"),
        ({"trf_blocks.0.att.out_proj.weight": np.zeros((60, 60), np.float32)[::-1]}, "neither by rows"),
        ({"trf_blocks.0.att.out_proj.weight": np.zeros((60, 60), ">f4")}, "expected numbers"),
        ({"trf_blocks.0.att.out_proj.weight": np.zeros((60, 60), np.int8)}, "no scale"),
        ({"trf_blocks.0.norm1.scale": np.zeros(61, np.float32)}, r"expected floats \[60\]"),
        ({"trf_blocks.0.att.out_proj.bias": np.zeros((60, 1), np.float32)}, r"expected floats \[60\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Array], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeModel(SIZES, random_parameters(SIZES) | change, 1)


@pytest.mark.parametrize(
    ("ids", "n_logits", "message"),
    [
        ([], 0, "0 logits of 0 tokens"),
        ([1, 2], 3, "3 logits of 2 tokens"),
        ([301], 1, "not all below 301"),
        ([-1], 1, "not all below 301"),
        ([1] * 31, 1, "31 more do not fit"),
    ],
)
def test_calls_that_do_not_fit_are_refused(ids: list[int], n_logits: int, message: str) -> None:
    engine = NativeModel(SIZES, random_parameters(SIZES), 1)
    with pytest.raises(ValueError, match=message):
        engine.forward([ids], engine.new_cache(1, 30), n_logits=[n_logits])
