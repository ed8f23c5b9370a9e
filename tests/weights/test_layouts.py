"""Files as trainers leave them: nanoGPT's layout, wrappers' prefixes, heads for other tasks, adapters."""

import json
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2DoubleHeadsModel, GPT2ForSequenceClassification

from gptcli.config.presets import sources_from_options
from gptcli.errors import WeightsError
from gptcli.runtime import load
from gptcli.runtime.native_runtime import unavailable_reason
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.report import load_report
from gptcli.weights.source import select_source
from tests.decoding import decode_ids
from tests.models import huggingface_state, lively_model, peak_bytes, save_huggingface, tiny_config
from tests.nanogpt import NanoGPT

GPT2 = {"vocab_size": 97, "n_positions": 16, "n_embd": 24, "n_head": 4, "n_layer": 2}
HEADS = ("v_head.summary.weight", "v_head.0.weight", "value_head.bias", "qa_outputs.bias", "classifier.bias")
IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def save_nanogpt(model: NanoGPT, folder: Path, prefix: str = "", **config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    state = {prefix + name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def ids_of(folder: Path, *overrides: str, n: int = 20) -> list[int]:
    loaded = load(select_source(folder, overrides=overrides), device="cpu")
    return decode_ids(loaded.model, IDS, n, engine=loaded.engine)


def fails(path: Path) -> str:
    with pytest.raises(WeightsError) as error:
        plan_load(path, [])
    assert "\n" not in str(error.value)
    return str(error.value)


class TestNanoGPT:
    @pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
    @pytest.mark.parametrize("prefix", ["", "_orig_mod.", "model."])
    def test_the_ids_are_those_of_its_code(self, tmp_path, bias, prefix):
        model = NanoGPT(bias=bias)
        folder = save_nanogpt(model, tmp_path, prefix)
        assert ids_of(folder, "n_heads=4") == model.greedy(IDS, 20)
        plan = plan_load(folder, sources_from_options(None, None, ["n_heads=4"]))
        assert plan.detected.layout.name == "nanogpt"
        for key in ("qkv_bias", "attn_out_bias", "ffn_bias", "norm_bias"):
            assert getattr(plan.config, key) == bias

    @pytest.mark.skipif(unavailable_reason(tiny_config()) is not None, reason="the kernels are not compiled")
    def test_the_native_kernels_decode_it_without_biases(self, tmp_path):
        model = NanoGPT(bias=False)
        folder = save_nanogpt(model, tmp_path, **model.model_args)
        loaded = load(select_source(folder), device="cpu", engine="native")
        assert decode_ids(loaded.model, IDS, 20, engine=loaded.engine) == model.greedy(IDS, 20)

    def test_its_exact_gelu_is_assumed_with_a_note_and_can_be_changed(self, tmp_path):
        model = NanoGPT(approximate="tanh")
        folder = save_nanogpt(model, tmp_path)
        plan = plan_load(folder, sources_from_options(None, None, ["n_heads=4"]))
        assert any("taking activation gelu; --set activation=" in note for note in plan.notes)
        logits = load(
            select_source(folder, overrides=["n_heads=4", "activation=gelu_tanh"]), device="cpu"
        ).model(torch.tensor([IDS]))
        torch.testing.assert_close(logits, model(torch.tensor([IDS])), atol=1e-5, rtol=0)
        chosen = plan_load(folder, sources_from_options(None, None, ["n_heads=4", "activation=gelu_tanh"]))
        assert not any("activation" in note for note in chosen.notes)

    def test_its_own_config_keys_give_the_heads(self, tmp_path):
        model = NanoGPT(bias=False)
        folder = save_nanogpt(model, tmp_path, **model.model_args)
        assert ids_of(folder) == model.greedy(IDS, 20)
        assert plan_load(folder, []).notes == ()

    def test_a_config_of_hugging_face_next_to_it_gives_heads_and_activation(self, tmp_path):
        model = NanoGPT(bias=False, approximate="tanh")
        config = {"model_type": "gpt2", "vocab_size": 97, "n_positions": 32, "n_embd": 24, "n_head": 4}
        folder = save_nanogpt(model, tmp_path, **config, n_layer=2)
        assert ids_of(folder) == model.greedy(IDS, 20)

    def test_one_of_the_tied_matrices_is_enough(self, tmp_path):
        model = NanoGPT()
        for name in ("lm_head.weight", "transformer.wte.weight"):
            folder = save_nanogpt(model, tmp_path / name, **model.model_args)
            state = load_file(folder / "model.safetensors")
            del state[name]
            save_file(state, folder / "model.safetensors")
            assert ids_of(folder) == model.greedy(IDS, 20)

    def test_one_matrix_the_other_way_around_is_refused_not_guessed(self, tmp_path):
        model = NanoGPT()
        folder = save_nanogpt(model, tmp_path, **model.model_args)
        state = load_file(folder / "model.safetensors")
        name = "transformer.h.1.attn.c_attn.weight"
        state[name] = state[name].T.contiguous()
        save_file(state, folder / "model.safetensors")
        with pytest.raises(WeightsError, match="tensors do not fit the model"):
            load_weights(plan_load(folder, []), device=torch.device("cpu"), dtype=torch.float32)


class TestPrefixes:
    @pytest.mark.parametrize(
        ("prefix", "head"),
        [
            ("model.transformer.", "model."),  # Lightning
            ("pretrained_model.transformer.", "pretrained_model."),  # TRL
            ("net.gpt.", "net."),
            ("gpt.transformer.", ""),
            ("module.model.transformer.", "module.model."),
            ("model._orig_mod.module.transformer.", "model._orig_mod.module."),
            ("_fsdp_wrapped_module.transformer.", "_fsdp_wrapped_module."),
        ],
    )
    def test_any_prefix_is_stripped(self, tmp_path, prefix, head):
        model = lively_model(tiny_config())
        folder = save_huggingface(model, tmp_path)
        state = {
            (head if name.startswith("lm_head") else prefix) + name: tensor
            for name, tensor in huggingface_state(model).items()
        }
        save_file(state, folder / "model.safetensors")
        loaded = load_weights(plan_load(folder, []), device=torch.device("cpu"), dtype=torch.float32)
        idx = torch.tensor([IDS])
        torch.testing.assert_close(loaded.model(idx), model(idx), atol=1e-6, rtol=0)

    def test_wrappers_within_a_name_are_stripped(self, tmp_path):
        model = lively_model(tiny_config())
        folder = save_huggingface(model, tmp_path)
        state = {
            name.replace("h.1.", "h.1._checkpoint_wrapped_module."): tensor
            for name, tensor in huggingface_state(model).items()
        }
        save_file(state, folder / "model.safetensors")
        rows = load_report(plan_load(folder, []))
        assert {row.action for row in rows} <= {"as is", "transposed", "split"}

    def test_the_other_half_of_an_encoder_decoder_is_refused(self, tmp_path):
        model = lively_model(tiny_config())
        folder = save_huggingface(model, tmp_path)
        state = {f"decoder.{name}": tensor for name, tensor in huggingface_state(model).items()}
        save_file(state | {"encoder.wte.weight2": torch.ones(2)}, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=r"1 unexpected: encoder\.wte\.weight2"):
            load_weights(plan_load(folder, []), device=torch.device("cpu"), dtype=torch.float32)


class TestOtherHeads:
    def check(self, folder: Path, names: set[str]) -> None:
        """The file loads as the language model that transformers makes of it; a note names the heads."""
        plan = plan_load(folder, [])
        (note,) = [note for note in plan.notes if "another task" in note]
        assert {name for name in names if name in note} == names
        assert {row.source for row in load_report(plan) if row.action == "ignored"} >= names
        idx = torch.tensor([IDS])
        loaded = load_weights(plan, device=torch.device("cpu"), dtype=torch.float32)
        reference = AutoModelForCausalLM.from_pretrained(folder).eval()
        torch.testing.assert_close(loaded.model(idx), reference(idx).logits, atol=1e-4, rtol=0)

    def test_a_classifier(self, tmp_path):
        GPT2ForSequenceClassification(GPT2Config(**GPT2, pad_token_id=0)).save_pretrained(tmp_path)
        self.check(tmp_path, {"score.weight"})

    def test_double_heads(self, tmp_path):
        GPT2DoubleHeadsModel(GPT2Config(**GPT2)).save_pretrained(tmp_path)
        self.check(tmp_path, {"multiple_choice_head.summary.weight", "multiple_choice_head.summary.bias"})

    @pytest.mark.parametrize(
        "name",
        [
            "v_head.summary.weight",
            "v_head.0.weight",
            "value_head.weight",
            "qa_outputs.bias",
            "classifier.bias",
        ],
    )
    def test_value_heads_and_others(self, tmp_path, name):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        save_file(
            huggingface_state(model) | {name: torch.ones(3)}, folder / "model.safetensors", {"format": "pt"}
        )
        self.check(folder, {name})

    def test_a_bias_of_the_language_models_own_head_is_not_ignored(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        save_file(huggingface_state(model) | {"lm_head.bias": torch.ones(97)}, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=r"1 unexpected: lm_head\.bias"):
            load_weights(plan_load(folder, []), device=torch.device("cpu"), dtype=torch.float32)


class TestAdapters:
    @pytest.mark.parametrize(
        "names",
        [
            ["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"],
            ["transformer.wte.weight", "transformer.h.0.attn.c_attn.lora_B.default.weight"],
        ],
    )
    def test_a_file_of_lora_matrices_is_named_with_what_to_do(self, tmp_path, names):
        save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "model.safetensors")
        message = fails(tmp_path)
        assert "an adapter (LoRA), not a model" in message
        assert "merge_and_unload()" in message


def write_header(path: Path, tensors: dict[str, list[int]]) -> Path:
    """Write a file of float32 zeros with these names and shapes."""
    header, at = {}, 0
    for name, shape in tensors.items():
        end = at + 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    return path


class TestSmallFilesThatClaimMuch:
    """Attacks B3 and E14: what a few names claim is refused before it is listed."""

    def check(self, path: Path, message: str) -> None:
        start, before = time.monotonic(), peak_bytes()
        assert message in fails(path)
        assert time.monotonic() - start < 20  # against minutes, nothing else
        assert peak_bytes() - before < 200e6

    def test_layers_times_experts(self, tmp_path):
        shapes = {"tok_emb.weight": [1, 1], "pos_emb.weight": [1, 1]}
        shapes |= {"trf_blocks.0.ff.gate.weight": [4096, 1], "trf_blocks.0.ff.fc1.0.weight": [1, 1]}
        path = write_header(
            tmp_path / "model.safetensors", shapes | {"trf_blocks.2999.ff.fc1.4095.weight": [0]}
        )
        (tmp_path / "config.json").write_text(
            json.dumps({"n_heads": 1, "n_experts_per_token": 2, "qkv_bias": False})
        )
        self.check(path, "its names claim 3,000 blocks of 4,096 experts")

    def test_a_high_block_number(self, tmp_path):
        state = {name: list(t.shape) for name, t in huggingface_state(lively_model(tiny_config())).items()}
        path = write_header(tmp_path / "model.safetensors", state | {"h.9999.ln_1.bias": [0]})
        (tmp_path / "config.json").write_text(json.dumps({"n_heads": 4}))
        self.check(path, "its names claim 10,000 blocks")

    def test_a_prefix_for_every_name(self, tmp_path):
        names = {f"p{i}.wte.weight": [1] for i in range(50_000)}
        self.check(write_header(tmp_path / "model.safetensors", names), "are the same tensor of the model")

    def test_a_name_of_millions_of_dots(self, tmp_path):
        path = write_header(tmp_path / "model.safetensors", {"a." * 1_000_000 + "wte.weight": [1]})
        self.check(path, "the name of a tensor has 2,000,010 characters")
