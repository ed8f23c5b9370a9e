"""Configs: valid and invalid ones, the messages, and the source of each value."""

import json

import pytest
import yaml

from gptcli.config.files import MAX_CONFIG_BYTES, read_config_file
from gptcli.config.model_config import ModelConfig, build_config
from gptcli.config.presets import preset_name, preset_names, resolve_options
from gptcli.errors import ConfigError, UsageError
from tests.models import tiny_values


def test_the_seven_keys_of_the_tutorial_build_the_tutorials_model():
    config = build_config(tiny_values(qkv_bias=False), "test")
    assert config.model_dump() == tiny_values(qkv_bias=False) | {
        "tie_embeddings": False,
        "norm_eps": 1e-5,
        "norm_unbiased": False,
        "norm_bias": True,
        "attn_out_bias": True,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "feed_forward": "mlp",
        "expert_feed_forward": "swiglu",
        "n_experts": 8,
        "n_experts_per_token": 2,
        "n_shared_experts": 0,
        "activation": "gelu_tanh",
        "swish_beta": 1.0,
        "swish_learn_beta": False,
        "ffn_dim_multiplier": None,
        "ffn_multiple_of": 256,
        "ffn_dim": 96,
        "ffn_bias": True,
        "ffn_drop_rate": 0.0,
        "tokenizer": "gpt2",
        "eos_token_id": None,
        "bos_token_id": None,
    }


def test_end_of_text_is_gpt2s_where_the_vocabulary_holds_it():
    assert build_config(tiny_values(vocab_size=50257), "test").eos_token_id == 50256
    assert build_config(tiny_values(vocab_size=50256), "test").eos_token_id is None
    assert build_config(tiny_values(vocab_size=50304, eos_token_id=None), "test").eos_token_id is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"emb_dims": 24}, "unknown key 'emb_dims' (did you mean emb_dim?)"),
        ({"emb_dim": "24"}, "emb_dim must be a whole number, got '24'"),
        ({"emb_dim": 24.0}, "emb_dim must be a whole number, got 24.0"),
        ({"n_layers": True}, "n_layers must be a whole number, got True"),
        ({"qkv_bias": 1}, "qkv_bias must be true or false, got 1"),
        ({"drop_rate": float("nan")}, "drop_rate must be a finite number, got nan"),
        ({"drop_rate": 1.5}, "drop_rate: input should be less than or equal to 1, got 1.5"),
        ({"n_heads": 5}, "n_heads must divide emb_dim: 24 / 5 is not a whole number"),
        ({"vocab_size": 0}, "vocab_size: input should be greater than or equal to 1, got 0"),
        ({"context_length": 2**40}, "context_length: input should be less than or equal to 2147483647"),
        ({"n_layers": 10**6}, "n_layers: input should be less than or equal to 10000"),
        ({"norm_eps": 0}, "norm_eps: input should be greater than 0, got 0"),
        ({"activation": "mish"}, "activation must be one of 'relu', 'gelu', 'gelu_tanh'"),
        ({"feed_forward": "moa"}, "feed_forward must be one of 'mlp', 'glu'"),
        ({"eos_token_id": 97}, "eos_token_id must be below vocab_size (97), got 97"),
        ({"eos_token_id": [1, 97, 98]}, "eos_token_id must be below vocab_size (97), got 97, 98"),
        ({"bos_token_id": 97}, "bos_token_id must be below vocab_size (97), got 97"),
        ({"emb_dim": 1, "n_heads": 1, "norm_unbiased": True}, "norm_unbiased needs an emb_dim of 2 or more"),
    ],
)
def test_a_wrong_value_is_refused_with_the_value_and_what_was_expected(change, message):
    with pytest.raises(ConfigError) as error:
        build_config(tiny_values(**change), "my.yaml")
    assert str(error.value).startswith("my.yaml: ")
    assert message in str(error.value)


def test_one_message_lists_all_faults():
    values = tiny_values(emb_dims=1, qkv_bias="yes", drop_rate=-1)
    del values["vocab_size"], values["emb_dim"]
    with pytest.raises(ConfigError) as error:
        build_config(values, "my.yaml")
    text = str(error.value)
    for part in ("missing key vocab_size", "missing key emb_dim", "emb_dims", "qkv_bias", "drop_rate"):
        assert part in text
    assert "\n" not in text
    assert "default" not in text  # a fault that only follows from another one is not listed


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        build_config(tiny_values(), "test").emb_dim = 5


class TestFiles:
    def test_yaml_and_json_give_the_same_config(self, tmp_path):
        (tmp_path / "a.json").write_text(json.dumps(tiny_values()))
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(tiny_values()))
        (tmp_path / "a.conf").write_text(json.dumps(tiny_values()))
        assert (
            read_config_file(tmp_path / "a.json")
            == read_config_file(tmp_path / "a.yaml")
            == read_config_file(tmp_path / "a.conf")
            == tiny_values()
        )

    @pytest.mark.parametrize("number", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-05"])
    def test_a_float_without_a_dot_is_a_number(self, tmp_path, number):
        path = tmp_path / "a.yaml"
        path.write_text(f"norm_eps: {number}\n")
        assert read_config_file(path) == {"norm_eps": 1e-5}

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.json", "", "not JSON: Expecting value (line 1, column 1)"),
            ("a.json", '{"emb_dim": 1, "emb_dim": 2}', "key 'emb_dim' appears twice"),
            ("a.json", '{"norm_eps": NaN}', "NaN is not a JSON number"),
            ("a.json", "[1, 2]", "expected a mapping such as 'emb_dim: 768', got a list"),
            ("a.json", "[" * 100_000, "nested too deeply"),
            ("a.json", '{"emb_dim": ' + "9" * 10_000 + "}", "a whole number of"),
            ("a.yaml", "", "expected a mapping such as 'emb_dim: 768', got nothing"),
            ("a.yaml", "emb_dim: 1\nemb_dim: 2", "key 'emb_dim' appears twice"),
            ("a.yaml", "a: [1,\nb: 2", "not YAML"),
            ("a.yaml", "a: &x [1]\nb: *x", "aliases are not allowed in a config (line 2, column 4)"),
            (
                "a.yaml",
                "a: !!python/object/apply:os.system [ls]",
                "not YAML: could not determine a constructor",
            ),
            ("a.yaml", "[" * 5_000, "nested too deeply"),
            ("a.yaml", "1: 2", "expected a mapping"),
            ("a.yaml", "? [1]\n: 2", "a key is not plain text"),
            ("a.yaml", "emb_dim: 1\0", "not YAML"),
        ],
    )
    def test_a_file_that_is_not_a_config_is_refused_in_one_line(self, tmp_path, name, text, message):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            read_config_file(path)
        assert message in str(error.value)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_missing_huge_or_binary_file_and_a_folder_are_refused(self, tmp_path):
        (tmp_path / "huge.yaml").write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
        (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        for name, message in (
            ("none.yaml", "no such config file"),
            ("huge.yaml", "a config is a dozen keys"),
            ("binary.yaml", "not UTF-8"),
            ("", "cannot be read"),
        ):
            with pytest.raises(ConfigError, match=message):
                read_config_file(tmp_path / name)


class TestPresets:
    def test_presets_are_the_published_models(self):
        published = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")
        assert tuple(name for name in preset_names() if name.startswith("gpt2")) == published
        xl = resolve_options("gpt2-xl", None, []).config
        assert (xl.emb_dim, xl.n_heads, xl.n_layers, xl.context_length) == (1600, 25, 48, 1024)
        assert xl.tie_embeddings
        assert xl.qkv_bias

    @pytest.mark.parametrize("name", ["gpt2", "GPT2", "GPT2-Small", " gpt2-small "])
    def test_case_does_not_matter_and_gpt2_is_small(self, name):
        assert preset_name(name) == "gpt2-small"

    def test_a_wrong_name_lists_the_presets_and_the_nearest(self):
        with pytest.raises(ConfigError) as error:
            preset_name("gpt2-smal")
        assert "did you mean gpt2-small?" in str(error.value)
        assert all(name in str(error.value) for name in preset_names())

    def test_preset_with_config_is_wrong_usage(self, tmp_path):
        with pytest.raises(UsageError, match="--preset and --config"):
            resolve_options("gpt2-small", tmp_path / "a.yaml", [])


class TestSet:
    def test_values_are_typed_as_in_a_file_and_the_last_wins(self):
        resolved = resolve_options(
            "gpt2", None, ["norm_eps=1e-6", "n_layers=3", "qkv_bias=false", "n_layers=2"]
        )
        assert (resolved.config.norm_eps, resolved.config.n_layers, resolved.config.qkv_bias) == (
            1e-6,
            2,
            False,
        )

    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("n_layers", "expected KEY=VALUE"),
            ("n_layer=2", "did you mean n_layers?"),
            ("n_layers=two", "n_layers must be a whole number, got 'two'"),
            ("n_layers=", "n_layers must be a whole number, got None"),
            ("n_layers=[", "not YAML"),
        ],
    )
    def test_a_wrong_assignment_is_refused(self, assignment, message):
        with pytest.raises(UsageError) as error:
            resolve_options(None, None, [assignment])
        assert message in str(error.value)


def test_every_value_has_its_origin(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tiny_values()))
    origin = resolve_options(None, path, ["drop_rate=0"]).origin
    assert set(origin) == set(ModelConfig.model_fields)
    assert (origin["emb_dim"], origin["drop_rate"], origin["norm_eps"]) == ("file", "flag", "default")
    assert resolve_options("gpt2", None, []).origin["emb_dim"] == "preset"


class TestHuggingFaceConfig:
    def test_hugging_face_keys_become_ours(self, tmp_path):
        path = tmp_path / "config.json"
        values = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_head": 12}
        path.write_text(
            json.dumps(values | {"n_layer": 12, "n_inner": None, "activation_function": "gelu_new"})
        )
        assert resolve_options(None, path, []).config == resolve_options("gpt2-small", None, []).config

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
            ({"add_cross_attention": True}, "add_cross_attention is True"),
            ({"model_type": "llama"}, "model_type is 'llama'"),
            ({"activation_function": "mish"}, "activation_function is 'mish'"),
            ({"activation_function": ["gelu"]}, "activation_function is ['gelu']"),
            ({"gptcli": {"norm_unbiassed": True}}, "did you mean norm_unbiased?"),
            ({"gptcli": 3}, "gptcli must be a mapping"),
        ],
    )
    def test_settings_that_change_the_arithmetic_are_refused_by_name(self, tmp_path, change, message):
        path = tmp_path / "config.json"
        values = {"model_type": "gpt2", "vocab_size": 97, "n_positions": 16, "n_embd": 24, "n_head": 4}
        path.write_text(json.dumps(values | {"n_layer": 2} | change))
        with pytest.raises(ConfigError) as error:
            resolve_options(None, path, [])
        assert message in str(error.value)
