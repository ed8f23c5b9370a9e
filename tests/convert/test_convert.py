"""`python -m gptcli.convert`: what trainers leave behind decodes to the same ids before and after."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from gptcli.api import GenerationOptions, generate, load_model
from gptcli.cli import boundary
from gptcli.cli.convert import PROGRAM, app, parse_size
from gptcli.engine.native import library
from gptcli.errors import UsageError
from gptcli.model.gpt import GPTModel, generate_text_simple
from gptcli.runtime import load
from gptcli.weights.arrays import read_arrays
from gptcli.weights.head import resolve_head
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.source import select_source
from tests.conftest import Result
from tests.decoding import decode_ids
from tests.models import (
    huggingface_config,
    huggingface_state,
    lively_model,
    peak_bytes,
    save_huggingface,
    save_tutorial,
    sparse_safetensors,
    tiny_config,
)
from tests.nanogpt import NanoGPT

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
N = 8


@pytest.fixture
def convert(capfd) -> Callable[..., Result]:
    """Return a function that runs the command in this process."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        status = boundary.run(app, PROGRAM, [str(argument) for argument in arguments])
        sys.stdout.flush()
        return Result(status, *capfd.readouterr())

    return call


def converted_ids(folder: Path, **options) -> list[int]:
    """Return greedy ids of a converted folder, which must load without a note on the model."""
    loaded = load(select_source(folder), device="cpu", **options)
    notes = [note for note in loaded.notes if not note.startswith("no tokenizer")]  # the vocabulary is tiny
    assert notes == [] or "PyTorch decodes" in notes[-1]
    return decode_ids(loaded.model, IDS, N, engine=loaded.engine)


def model_ids(model: GPTModel) -> list[int]:
    """Return greedy ids of a model in PyTorch by the tutorial's own loop."""
    idx = generate_text_simple(model, torch.tensor([IDS]), N, model.config.context_length)
    return idx[0, len(IDS) :].tolist()


def transformers_ids(folder: Path) -> list[int]:
    reference = AutoModelForCausalLM.from_pretrained(folder).eval()
    out = reference.generate(torch.tensor([IDS]), max_new_tokens=N, min_new_tokens=N, do_sample=False)
    return out[0, len(IDS) :].tolist()


class TestTrainers:
    """Checkpoints made by plain torch code."""

    @pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
    @pytest.mark.parametrize("layout", ["hf", "tutorial"])
    def test_nanogpts(self, convert, tmp_path, bias, layout):
        model = NanoGPT(bias=bias)
        state = {f"_orig_mod.{name}": tensor for name, tensor in model.state_dict().items()}
        checkpoint = {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}
        checkpoint |= {"model_args": model.model_args, "iter_num": 5, "best_val_loss": torch.tensor(1.0)}
        torch.save(checkpoint | {"config": {"block_size": 32, "batch_size": 12}}, tmp_path / "ckpt.pt")
        result = convert(tmp_path / "ckpt.pt", tmp_path / "out", "--layout", layout, "--quiet")
        assert (result.status, result.err) == (0, "")
        assert converted_ids(tmp_path / "out") == model.greedy(IDS, N)
        if layout == "hf":
            assert transformers_ids(tmp_path / "out") == model.greedy(IDS, N)

    def test_lightnings(self, convert, tmp_path):
        model = NanoGPT()
        state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        checkpoint = {"state_dict": state, "epoch": 1, "pytorch-lightning_version": "2.5", "callbacks": {}}
        checkpoint |= {"hyper_parameters": {"lr": 1e-3, "model": model.model_args}, "loops": {"a": {}}}
        torch.save(checkpoint, tmp_path / "epoch=1.ckpt")
        assert convert(tmp_path / "epoch=1.ckpt", tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model.greedy(IDS, N)
        assert transformers_ids(tmp_path / "out") == model.greedy(IDS, N)

    @pytest.mark.parametrize("layout", ["hf", "tutorial"])
    @pytest.mark.parametrize("wrapped", [True, False], ids=["model_state_dict", "bare"])
    def test_the_tutorials(self, convert, tmp_path, layout, wrapped):
        model = lively_model(tiny_config(qkv_bias=False))
        state = dict(model.state_dict()) | {"trf_blocks.0.att.mask": torch.ones(16, 16).triu(1)}
        checkpoint = {"model_state_dict": state, "optimizer_state_dict": {"state": {}}} if wrapped else state
        torch.save(checkpoint, tmp_path / "model_and_optimizer.pth")
        arguments = (tmp_path / "model_and_optimizer.pth", tmp_path / "out", "--layout", layout)
        result = convert(*arguments)
        assert result.status == 1  # no width of 64
        assert "--set n_heads=N" in result.err
        assert not (tmp_path / "out").exists()
        assert convert(*arguments, "--set", "n_heads=4").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)
        if layout == "hf":
            assert transformers_ids(tmp_path / "out") == model_ids(model)

    def test_the_tutorials_with_its_config_in_it(self, convert, tmp_path):
        model = lively_model(tiny_config(qkv_bias=False))
        seven = {k: model.config.model_dump()[k] for k in tiny_config().model_dump() if k in SEVEN}
        torch.save({"model": model.state_dict(), "cfg": seven}, tmp_path / "m.pt")
        assert convert(tmp_path / "m.pt", tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)

    def test_our_own_of_a_training_run(self, convert, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True, activation="relu", norm_eps=1e-3))
        checkpoint = {"done": 3, "best": 1.0, "settings": {"steps": 9}, "config": model.config.model_dump()}
        checkpoint |= {"model": dict(model.named_parameters()), "generator": torch.get_rng_state()}
        torch.save(checkpoint, tmp_path / "checkpoint.pt")
        assert convert(tmp_path, tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)

    @pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "before PyTorch 1.6"])
    def test_pytorch_model_bin_with_what_lies_next_to_it(self, convert, tmp_path, is_archive):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = tmp_path / "in"
        folder.mkdir()
        state = {f"transformer.{name}": tensor for name, tensor in huggingface_state(model).items()}
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)
        (folder / "config.json").write_text(json.dumps(huggingface_config(model.config)))
        (folder / "special_tokens_map.json").write_text("{}")
        torch.save({"lr": 1}, folder / "optimizer.pt")
        assert convert(folder, tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model) == transformers_ids(tmp_path / "out")
        assert (tmp_path / "out" / "special_tokens_map.json").read_text() == "{}"

    def test_sharded_pickles(self, convert, tmp_path):
        model = lively_model(tiny_config())
        state, folder = huggingface_state(model), tmp_path / "in"
        folder.mkdir()
        for number, names in enumerate((list(state)[::2], list(state)[1::2]), 1):
            shard = f"pytorch_model-0000{number}-of-00002.bin"
            torch.save({name: state[name] for name in names}, folder / shard)
        (folder / "config.json").write_text(json.dumps(huggingface_config(model.config)))
        assert convert(folder, tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)

    def test_tensors_that_lie_in_any_order(self, convert, tmp_path):
        model = lively_model(tiny_config())
        state = dict(model.state_dict())
        for name, tensor in state.items():
            if tensor.ndim == 2:
                state[name] = tensor.t().contiguous().t()
        whole = torch.cat([torch.zeros(1, 24), state["tok_emb.weight"]])
        torch.save(state | {"tok_emb.weight": whole[1:]}, tmp_path / "m.pt")
        assert convert(tmp_path / "m.pt", tmp_path / "out", "--set", "n_heads=4").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)


SEVEN = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers", "drop_rate", "qkv_bias")


class TestOutput:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("layout", ["hf", "tutorial"])
    def test_the_numbers_are_those_of_pytorchs_cast(self, convert, tmp_path, dtype, layout):
        model = lively_model(tiny_config())
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--layout", layout, "--dtype", dtype).status == 0
        written = load_file(tmp_path / "out" / "model.safetensors")
        expected = huggingface_state(model) if layout == "hf" else dict(model.state_dict())
        assert written.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(written[name], tensor.to(getattr(torch, dtype))), name

    def test_back_and_forth_gives_the_same_bytes(self, convert, tmp_path):
        source = save_huggingface(lively_model(tiny_config()), tmp_path / "in")
        assert convert(source, tmp_path / "a", "--layout", "tutorial").status == 0
        assert convert(tmp_path / "a", tmp_path / "b", "--layout", "hf").status == 0
        before = load_file(source / "model.safetensors")
        after = load_file(tmp_path / "b" / "model.safetensors")
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)

    def test_shards_above_a_size_load_here_and_in_transformers(self, convert, tmp_path):
        model = lively_model(tiny_config())
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--shard-size", "20kB").status == 0
        names = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
        assert len(names) > 2
        assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        total = sum(t.nbytes for t in huggingface_state(model).values())
        assert index["metadata"]["total_size"] == total
        assert converted_ids(tmp_path / "out") == model_ids(model) == transformers_ids(tmp_path / "out")

    def test_a_model_that_is_no_gpt2_keeps_the_tutorials_layout(self, convert, tmp_path):
        model = lively_model(tiny_config(feed_forward="swiglu"))
        source = save_tutorial(model, tmp_path / "in")
        assert convert(source, tmp_path / "out").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(model)
        refused = convert(source, tmp_path / "hf", "--layout", "hf")
        assert (refused.status, refused.err.count("\n")) == (2, 1)
        assert "--layout tutorial" in refused.err

    def test_the_report_names_every_key(self, convert, tmp_path):
        model = NanoGPT(bias=False)
        state = dict(model.state_dict()) | {"v_head.weight": torch.ones(2), "step": 7}
        torch.save({"model": state, "model_args": model.model_args, "epoch": 1}, tmp_path / "m.pt")
        done = json.loads(convert(tmp_path / "m.pt", tmp_path / "out", "--json", "--quiet").out)
        keys = {row["key"]: row for row in done["keys"] if row["key"]}
        assert keys.keys() == state.keys() | {"model_args", "epoch"}
        assert keys["transformer.wte.weight"]["written_as"] == ["wte.weight"]
        assert keys["v_head.weight"]["reason"] == "a head for another task"
        assert keys["step"]["reason"] == "not a tensor of the model"
        zeros = {row["written_as"][0] for row in done["keys"] if row["key"] is None}
        assert zeros == {
            name for name in load_file(tmp_path / "out" / "model.safetensors") if ".bias" in name
        }
        text = convert(tmp_path / "m.pt", tmp_path / "again").out
        assert all(key in text for key in keys)

    def test_a_model_that_is_there_is_replaced_only_with_force_and_whole(self, convert, tmp_path):
        model, other = lively_model(tiny_config()), lively_model(tiny_config(), seed=1)
        out = save_huggingface(other, tmp_path / "out")
        source = save_huggingface(model, tmp_path / "in")
        refused = convert(source, out)
        assert refused.status == 1
        assert "has model.safetensors and config.json already; --force replaces them" in refused.err
        assert convert(source, out, "--force", "--shard-size", "20kB").status == 0
        assert not (out / "model.safetensors").exists()  # it would hide the shards
        assert converted_ids(out) == model_ids(model)
        assert convert(source, out, "--force").status == 0
        assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]

    def test_a_conversion_in_place_replaces_its_source(self, convert, tmp_path):
        model = lively_model(tiny_config())
        folder = save_huggingface(model, tmp_path)
        assert convert(folder, folder, "--force", "--layout", "tutorial").status == 0
        assert converted_ids(folder) == model_ids(model)

    def test_a_failure_leaves_what_was_there(self, convert, tmp_path):
        model = lively_model(tiny_config())
        with torch.no_grad():
            model.out_head.weight[0, 0] = 1e6  # more than float16 has
        source = save_huggingface(model, tmp_path / "in")
        out = save_huggingface(lively_model(tiny_config(), seed=1), tmp_path / "out")
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        for folder in (out, tmp_path / "new"):
            result = convert(source, folder, "--force", "--dtype", "float16")
            assert result.status == 1
            assert "lm_head.weight: has numbers above 65,504" in result.err
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        assert not (tmp_path / "new").exists()

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
    def test_it_takes_the_memory_of_one_tensor(self, tmp_path):
        """500 MB in float32, of which the largest tensor is 154 MB, and as much again while it is cast."""
        from gptcli.config.presets import resolve_options

        config = resolve_options("gpt2-small", None, []).config
        path = sparse_safetensors(tmp_path / "model.safetensors", config)
        code = f"""
from pathlib import Path
from tests.models import peak_bytes
from gptcli.convert.run import ConversionOptions, convert
before = peak_bytes()
convert(Path({str(path)!r}), Path({str(tmp_path / "out")!r}), ConversionOptions(dtype="bfloat16"), print)
print(peak_bytes() - before)
"""
        out = subprocess.check_output(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=120
        )
        assert int(out.split()[-1]) < 350e6


class TestInt8:
    @pytest.fixture(params=[True, False], ids=["tied", "untied"])
    def model(self, request) -> GPTModel:
        return lively_model(tiny_config(tie_embeddings=request.param, vocab_size=50257))

    @pytest.mark.parametrize("engine", ["native", "torch"])
    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
    def test_it_decodes_to_the_text_of_quantize(self, convert, tmp_path, model, engine, stored):
        if engine == "native":
            try:
                library.load_library()
            except library.KernelsUnavailableError:
                pytest.skip("no kernels")
        source = save_huggingface(model, tmp_path / "in")
        state = {name: t.to(stored) for name, t in huggingface_state(model).items()}
        save_file(state, source / "model.safetensors", {"format": "pt"})
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        options = GenerationOptions(max_new_tokens=24, logprobs=True)
        quantized = load_model(source, engine=engine, quantize="int8", device="cpu")
        saved = load_model(tmp_path / "out", engine=engine, device="cpu")
        assert saved.dtype == quantized.dtype == "int8 with float32"
        for prompt in ("Hello", "Once upon a time"):
            mine, theirs = generate(saved, prompt, options), generate(quantized, prompt, options)
            assert mine.ids == theirs.ids
            expected = theirs.completions[0].logprobs
            if engine == "torch":  # whose sums depend on where its memory begins
                expected = pytest.approx(expected, rel=1e-5)
            assert mine.completions[0].logprobs == expected

    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
    def test_nothing_of_the_file_is_copied(self, convert, tmp_path, model, stored):
        source = save_huggingface(model, tmp_path / "in")
        state = {name: t.to(stored) for name, t in huggingface_state(model).items()}
        save_file(state, source / "model.safetensors", {"format": "pt"})
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        _, arrays, _ = read_arrays(plan_load(tmp_path / "out", []), "float32")
        assert arrays["out_head.weight"].dtype == "int8"
        for name, array in arrays.items():
            assert not array.flags.owndata, name
            assert array.flags.aligned, name

    @pytest.mark.parametrize("engine", ["auto", "torch"])
    def test_to_ask_for_int8_again_changes_nothing(self, convert, tmp_path, model, engine):
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        once = converted_ids(tmp_path / "out", engine=engine)
        assert converted_ids(tmp_path / "out", engine=engine, quantize=True) == once

    def test_scales_stay_float32_in_every_dtype(self, convert, tmp_path, model):
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        saved, plan = load_file(tmp_path / "out" / "model.safetensors"), plan_load(tmp_path / "out", [])
        _, arrays, _ = read_arrays(plan, "bfloat16")
        loaded = load_weights(plan, device=torch.device("cpu"), dtype=torch.bfloat16).model.state_dict()
        for name in ("out_head.scale", "trf_blocks.0.att.W_key.scale"):
            assert torch.equal(torch.from_numpy(arrays[name].copy()), saved[name])
            assert torch.equal(loaded[name], saved[name])

    def test_its_head_is_used_though_a_config_ties_the_original(self, convert, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        expected = converted_ids(tmp_path / "out")
        config = tmp_path / "out" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_embeddings": True}))
        loaded = load(select_source(tmp_path / "out"), device="cpu")
        assert loaded.model.out_head.weight.dtype == torch.int8
        assert decode_ids(loaded.model, IDS, N, engine=loaded.engine) == expected

    def test_it_is_converted_back_and_on_as_it_is(self, convert, tmp_path, model):
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "int8", "--dtype", "int8").status == 0
        assert convert(tmp_path / "int8", tmp_path / "again").status == 0
        first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("int8", "again"))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert (
            convert(tmp_path / "int8", tmp_path / "float", "--layout", "hf", "--dtype", "float32").status == 0
        )
        head = load_file(tmp_path / "float" / "model.safetensors")["lm_head.weight"]
        expected = first["out_head.weight"].float() * first["out_head.scale"][:, None]
        assert torch.equal(head, expected)

    def test_a_difference_is_that_of_the_numbers_it_stands_for(self, convert, tmp_path, model, cli):
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        result = cli("inspect", tmp_path / "out", "--diff", source, "--json")
        rows = {row["name"]: row for row in json.loads(result.out)["parameters"]}
        assert rows["tok_emb.weight"]["verdict"] == "equal"
        scale = load_file(tmp_path / "out" / "model.safetensors")["trf_blocks.0.ff.layers.0.scale"]
        assert 0 < rows["trf_blocks.0.ff.layers.0.weight"]["largest_absolute"] <= scale.max().item() * 0.51

    def test_missing_scales_are_named(self, convert, tmp_path, model, cli):
        source = save_huggingface(model, tmp_path / "in")
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        path = tmp_path / "out" / "model.safetensors"
        state = load_file(path)
        del state["trf_blocks.1.ff.layers.2.scale"]
        save_file(state, path)
        result = cli("generate", "Hi", "-w", tmp_path / "out")
        assert result.status == 1
        assert "1 missing: trf_blocks.1.ff.layers.2.scale" in result.err

    def test_it_is_not_for_transformers_nor_for_training(self, convert, tmp_path, model):
        from gptcli.cli.train import PROGRAM as TRAIN
        from gptcli.cli.train import app as train

        source = save_huggingface(model, tmp_path / "in")
        result = convert(source, tmp_path / "out", "--dtype", "int8", "--layout", "hf")
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert convert(source, tmp_path / "out", "--dtype", "int8").status == 0
        (tmp_path / "text.txt").write_text("hello world " * 100)
        arguments = ["--data", tmp_path / "text.txt", "-w", tmp_path / "out", "--output", tmp_path / "run"]
        assert boundary.run(train, TRAIN, [str(a) for a in arguments]) == 1


class Dangerous:
    """An object whose pickle runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class TestRefusals:
    def fails(self, convert, path: Path, *arguments: str) -> str:
        out = path.parent / "out"
        result = convert(path, out, *arguments)
        assert result.status == 1
        assert result.out == ""
        assert result.err.count("\n") == 1
        assert "internal error" not in result.err
        assert not out.exists()
        return result.err

    def test_what_could_run_code_is_refused_by_name_and_not_run(self, convert, tmp_path):
        torch.save({"model": {}, "args": Dangerous(tmp_path / "ran")}, tmp_path / "a.pt")
        assert "posix.system" in self.fails(convert, tmp_path / "a.pt")
        torch.save(nn.Linear(2, 2), tmp_path / "b.pt")
        assert "torch.nn.modules.linear.Linear" in self.fails(convert, tmp_path / "b.pt")
        (tmp_path / "c.pkl").write_bytes(pickle.dumps(Dangerous(tmp_path / "ran"), protocol=2))
        assert "posix.system" in self.fails(convert, tmp_path / "c.pkl")
        assert not (tmp_path / "ran").exists()

    def test_an_archive_that_unpacks_to_more_than_its_size(self, convert, tmp_path):
        torch.save({"wte.weight": torch.zeros(1 << 20)}, tmp_path / "stored.pt")
        stored = zipfile.ZipFile(tmp_path / "stored.pt")
        with stored, zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
            for record in stored.infolist():
                bomb.writestr(record.filename, stored.read(record))
        assert "unpacks to 4," in self.fails(convert, tmp_path / "bomb.pt")

    @pytest.mark.parametrize("is_archive", [True, False])
    def test_a_pickle_that_would_fill_the_memory(self, convert, tmp_path, is_archive):
        """`weights_only` allows bytearray(n): 1 kB took 2 GB."""
        path = tmp_path / "m.pt"
        call = b"cbuiltins\nbytearray\n\x8a\x05" + (2 * 10**9).to_bytes(5, "little") + b"\x85R"
        content = b"\x80\x02}X\x01\x00\x00\x00a" + call + b"s."
        path.write_bytes(content)
        if is_archive:
            torch.save({}, tmp_path / "empty.pt")
            empty = zipfile.ZipFile(tmp_path / "empty.pt")
            with empty, zipfile.ZipFile(path, "w") as archive:
                for name in empty.namelist():
                    archive.writestr(name, content if name.endswith("data.pkl") else empty.read(name))
        before = peak_bytes()
        assert "holds an object of builtins.bytearray" in self.fails(convert, path)
        assert peak_bytes() - before < 500e6

    def test_a_tensor_that_repeats_its_numbers(self, convert, tmp_path):
        torch.save({"wte.weight": torch.ones(1).expand(1 << 16, 1 << 16)}, tmp_path / "m.pt")
        assert "'wte.weight' repeats its numbers" in self.fails(convert, tmp_path / "m.pt")

    def test_a_file_cut_anywhere(self, convert, tmp_path):
        torch.save(lively_model(tiny_config()).state_dict(), tmp_path / "whole.pt")
        whole = (tmp_path / "whole.pt").read_bytes()
        path = tmp_path / "m.pt"
        for length in [0, 1, 2, 50, *range(100, len(whole), len(whole) // 10), len(whole) - 1]:
            path.write_bytes(whole[:length])
            self.fails(convert, path, "--set", "n_heads=4")

    def test_any_changed_byte_gives_one_line_or_a_model(self, convert, tmp_path):
        torch.save(huggingface_state(lively_model(tiny_config(n_layers=1))), tmp_path / "whole.pt")
        whole = bytearray((tmp_path / "whole.pt").read_bytes())
        path = tmp_path / "m.pt"
        for at in range(0, len(whole), len(whole) // 60):
            changed = bytearray(whole)
            changed[at] ^= 0x41
            path.write_bytes(changed)
            result = convert(path, tmp_path / "out", "--set", "n_heads=4", "--force", "-q")
            assert result.status in (0, 1)
            assert result.err.count("\n") == (result.status == 1)
            assert "internal error" not in result.err

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ([1, 2], "holds a list"),
            ({"a": 1}, "no layout that gptcli knows"),
            ({"model": {"x": torch.ones(1)}}, "no layout that gptcli knows"),
            ({"wte.weight": torch.ones(2, 2).to_sparse()}, "only dense numbers are read"),
            (
                {key: {"wte.weight": torch.ones(2, 2)} for key in ("student", "teacher")},
                "holds several models: student, teacher; name one with --key",
            ),
        ],
        ids=["list", "no tensors", "other names", "sparse", "two"],
    )
    def test_what_holds_no_model(self, convert, tmp_path, content, message):
        torch.save(content, tmp_path / "m.pt")
        assert message in self.fails(convert, tmp_path / "m.pt")

    def test_other_sources(self, convert, tmp_path):
        os.mkfifo(tmp_path / "pipe.pt")
        assert "not a regular file" in self.fails(convert, tmp_path / "pipe.pt")
        (tmp_path / "lfs.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n")
        assert "a Git LFS pointer" in self.fails(convert, tmp_path / "lfs.bin")
        assert "no such weights" in self.fails(convert, tmp_path / "none.pt")
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        assert "expected a .safetensors file" in self.fails(convert, tmp_path / "m.gguf")

    def test_the_state_dict_among_several_is_named(self, convert, tmp_path):
        model, other = lively_model(tiny_config()), lively_model(tiny_config(), seed=1)
        torch.save({"student": model.state_dict(), "teacher": other.state_dict()}, tmp_path / "m.pt")
        arguments = (tmp_path / "m.pt", tmp_path / "out", "--set", "n_heads=4", "--key")
        assert convert(*arguments, "teacher").status == 0
        assert converted_ids(tmp_path / "out") == model_ids(other)
        assert "--key none: expected one of student, teacher" in convert(*arguments, "none", "--force").err

    @pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
    def test_a_source_that_is_cut_while_it_is_read(self, convert, tmp_path, monkeypatch, name):
        model = lively_model(tiny_config())
        folder = save_huggingface(model, tmp_path / "in")
        if name.endswith(".bin"):
            torch.save(huggingface_state(model), folder / name)
            (folder / "model.safetensors").unlink()
        whole = resolve_head

        def cut(*arguments, **options):
            os.truncate(folder / name, 4096)
            return whole(*arguments, **options)

        monkeypatch.setattr("gptcli.convert.run.resolve_head", cut)
        assert "another program changed it while it was read" in self.fails(convert, folder)

    def test_sizes_of_shards(self):
        assert parse_size("5GB") == 5_000_000_000
        assert parse_size(" 1.5 MiB") == 3 << 19
        assert parse_size("100") == 100
        for text in ("", "GB", "-1GB", "0", "1e9", "5 apples", "nan"):
            with pytest.raises(UsageError, match="expected a size such as 5GB"):
                parse_size(text)
