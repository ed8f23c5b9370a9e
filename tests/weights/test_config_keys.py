"""A Hugging Face `config.json` means what transformers means by it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from gptcli.convert.run import ConversionOptions, convert
from gptcli.errors import WeightsError
from gptcli.model.init import random_model
from gptcli.runtime import load
from gptcli.weights.plan import plan_load
from gptcli.weights.save import save_model
from gptcli.weights.source import select_source
from tests.decoding import decode_ids
from tests.models import tiny_config

SIZES = {"vocab_size": 211, "n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 12}
PROMPT = [5, 17, 200, 3, 88]


def saved(folder, **keys):
    """Save a lively random GPT-2 by transformers; return its folder."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**(SIZES | {"bos_token_id": None, "eos_token_id": None} | keys)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.3 if parameter.ndim == 1 else 0.15) * torch.randn_like(parameter)
        model.transformer.wpe.weight *= 6  # so that the text does not repeat one token
    model.save_pretrained(folder)
    return folder


def change_config(folder, name="config.json", **keys) -> None:
    """Change keys of a JSON file in a folder; None removes one."""
    path = folder / name
    values = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def assert_same_ids(folder, reference=None) -> None:
    """Compare 40 ids by both engines with those of transformers in float64, from the same folder."""
    model = AutoModelForCausalLM.from_pretrained(reference or folder, dtype=torch.float64).eval()
    for engine in ("native", "torch"):
        ids = decode_ids(
            None, PROMPT, 40, engine=load(select_source(folder), engine=engine, device="cpu").engine
        )
        with torch.inference_mode():
            logits = model(torch.tensor([PROMPT + ids])).logits[0]
        assert ids == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist(), engine
        assert len(set(ids)) > 1


@pytest.mark.parametrize(
    "keys",
    [
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
        {"n_inner": 37, "activation_function": "quick_gelu", "layer_norm_epsilon": 0.01},
        {"tie_word_embeddings": False},
        {"activation_function": "gelu_python"},
        {"activation_function": "gelu_python_tanh"},
        {"activation_function": "gelu_accurate"},
    ],
    ids=str,
)
def test_keys_of_arithmetic_are_those_of_transformers(keys, tmp_path):
    assert_same_ids(saved(tmp_path, **keys))


@pytest.mark.parametrize(
    "removed",
    [
        ["n_head"],
        ["n_head", "activation_function", "layer_norm_epsilon", "n_inner", "tie_word_embeddings"],
        ["scale_attn_weights", "scale_attn_by_inverse_layer_idx", "eos_token_id", "bos_token_id"],
    ],
    ids=str,
)
def test_absent_keys_have_the_defaults_of_transformers(removed, tmp_path):
    folder = saved(tmp_path)
    change_config(folder, **dict.fromkeys(removed))
    assert_same_ids(folder)
    assert not [note for note in plan_load(folder, []).notes if "config.json" in note]


@pytest.mark.parametrize("values", [{}, {"vocab_size": 211}, {"eos_token_id": 7, "bos_token_id": None}])
def test_a_config_without_a_key_of_its_own_is_hugging_faces_next_to_its_layout(values, tmp_path):
    folder, reference = saved(tmp_path / "ours"), saved(tmp_path / "theirs", n_head=12)
    (folder / "config.json").write_text(json.dumps(values))
    assert_same_ids(folder, reference)
    assert not [note for note in plan_load(folder, []).notes if "config.json" in note]


def test_a_config_with_our_own_keys_stays_ours(tmp_path):
    folder = saved(tmp_path, n_head=6)
    (folder / "config.json").write_text(json.dumps({"n_heads": 6, "norm_eps": 1e-5}))
    assert plan_load(folder, []).config.n_heads == 6


@pytest.mark.parametrize("names", [("n_head", "num_attention_heads"), ("num_attention_heads", "n_head")])
def test_of_two_spellings_the_one_that_transformers_takes_counts(names, tmp_path):
    folder = saved(tmp_path)
    path = folder / "config.json"
    values = {key: value for key, value in json.loads(path.read_text()).items() if key != "n_head"}
    heads = {"n_head": 4, "num_attention_heads": 6}
    path.write_text(json.dumps(values | {name: heads[name] for name in names}))
    assert_same_ids(folder)
    assert plan_load(folder, []).config.n_heads == 6


def test_other_spellings_count(tmp_path):
    folder = saved(tmp_path, n_head=6)
    change_config(
        folder,
        **dict.fromkeys(("n_embd", "n_head", "n_layer", "n_positions")),
        hidden_size=48,
        num_attention_heads=6,
        num_hidden_layers=3,
        max_position_embeddings=64,
    )
    assert_same_ids(folder)
    assert plan_load(folder, []).resolved.config.n_heads == 6


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt_neo"),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"quant_method": "gptq"}),
        ("activation_function", "mish"),
    ],
)
def test_other_arithmetic_is_refused_by_name(key, value, tmp_path):
    folder = saved(tmp_path)
    change_config(folder, **{key: value})
    with pytest.raises(WeightsError, match=f"{key} is "):
        plan_load(folder, [])


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("n_head", "n_heads"),
        ("layer_norm_epsilon", "norm_eps"),
        ("scale_attn_weights", "scale_attn_weights"),
        ("vocab_size", "vocab_size"),
    ],
)
def test_null_is_no_value_where_transformers_takes_none(key, ours, tmp_path):
    folder = saved(tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {key: None}))
    with pytest.raises(WeightsError, match=f"{ours} (None|must be .*, got None)"):
        plan_load(folder, [])


def test_a_long_value_is_shortened_in_the_message(tmp_path):
    folder = saved(tmp_path)
    change_config(folder, quantization_config={"modules": ["a"] * 1000}, activation_function="a" * 1000)
    with pytest.raises(WeightsError) as caught:
        plan_load(folder, [])
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": [7, 9]}, {}, {7, 9}),
        ({"eos_token_id": -1}, {}, set()),
        ({"eos_token_id": 7}, {"eos_token_id": [9, 210, 211]}, {9, 210}),
        ({"eos_token_id": 7}, {"temperature": 0.7, "do_sample": True}, {7}),
        ({"eos_token_id": 50256}, {}, set()),
        ({"eos_token_id": [-1, 7]}, {}, {7}),
        ({"eos_token_id": []}, {}, set()),
        ({"eos_token_id": 7}, {"eos_token_id": None}, set()),
    ],
)
def test_end_tokens_are_a_set_and_those_of_generation_config_count(config, generation, expected, tmp_path):
    folder = saved(tmp_path)
    change_config(folder, **config)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert plan_load(folder, []).resolved.config.eos_token_ids == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"generation_config.json: not JSON"),
        ('{"eos_token_id": "x"}', r"generation_config.json: eos_token_id must be .*, got 'x'"),
        ('{"eos_token_id": [7, null]}', r"generation_config.json: eos_token_id must be .*, got \[7, None\]"),
        ('{"bos_token_id": [7]}', r"generation_config.json: bos_token_id must be .*, got \[7\]"),
    ],
)
def test_a_broken_generation_config_is_one_line(text, message, tmp_path):
    folder = saved(tmp_path)
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(WeightsError, match=message):
        plan_load(folder, [])


def test_the_keys_survive_a_round_trip(tmp_path):
    from gptcli.config.huggingface import from_huggingface, to_huggingface

    folder = saved(tmp_path, scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False)
    change_config(folder, eos_token_id=[7, 9], bos_token_id=3)
    (folder / "generation_config.json").unlink()
    config = plan_load(folder, []).resolved.config
    again = from_huggingface(json.loads(json.dumps(to_huggingface(config))), "test")
    keys = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "bos_token_id")
    assert {key: again[key] for key in keys} == {key: getattr(config, key) for key in keys}
    assert (config.eos_token_ids, again["eos_token_id"], config.bos_token_id) == ({7, 9}, [7, 9], 3)


@pytest.mark.parametrize("old", [{"eos_token_id": 5, "bos_token_id": 5, "top_k": 7}, None], ids=str)
def test_a_saved_model_ends_as_it_did_whatever_generation_config_lies_in_the_folder(old, tmp_path):
    config = tiny_config(tie_embeddings=True, eos_token_id=(7, 9), bos_token_id=3)
    path = tmp_path / "generation_config.json"
    path.write_text("{" if old is None else json.dumps(old))
    save_model(random_model(config, 0), tmp_path)
    assert plan_load(tmp_path, []).config == config.model_copy(update={"drop_rate": 0.1})
    assert json.loads(path.read_text()) == (old or {}) | {"eos_token_id": [7, 9], "bos_token_id": 3}
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id == [7, 9]


def test_a_conversion_with_other_end_tokens_has_them(tmp_path):
    folder = saved(tmp_path / "source", eos_token_id=[5, 6], bos_token_id=5)
    options = ConversionOptions(overrides=["eos_token_id=7"])
    convert(folder, tmp_path / "converted", options, lambda *_: None)
    config = plan_load(tmp_path / "converted", []).config
    assert (config.eos_token_ids, config.bos_token_id) == ({7}, 5)
