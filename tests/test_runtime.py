"""Loading: device, dtype and memory are decided before anything is loaded; CUDA is simulated."""

import pytest
import torch

from gptcli.engine.native import library
from gptcli.errors import DeviceError, ResourceError
from gptcli.runtime import load, native_runtime
from gptcli.runtime.memory_check import choose_dtype
from gptcli.system import cgroup, memory
from gptcli.system import device as device_module
from gptcli.system.device import Device, find_device
from gptcli.weights.source import select_source
from tests.models import lively_model, save_huggingface, save_tutorial, tiny_config


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device_module, "driver_finds_gpus", lambda: True)


class TestDevice:
    @pytest.mark.usefixtures("two_gpus")
    def test_auto_is_the_first_gpu_if_there_is_one(self):
        assert find_device("auto") == find_device("cuda") == Device("cuda", 0)
        assert find_device("cuda:1") == Device("cuda", 1)
        assert find_device("cpu") == Device("cpu")

    @pytest.mark.usefixtures("two_gpus")
    def test_a_missing_gpu_is_refused_with_the_names_of_those_that_exist(self, monkeypatch):
        with pytest.raises(DeviceError, match="--device cuda:7: there is cuda:0 to cuda:1"):
            find_device("cuda:7")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(DeviceError, match="there is only cuda:0"):
            find_device("cuda:1")

    def test_without_cuda_auto_is_the_cpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for finds_gpus in (False, True):  # a driver without a PyTorch that can use it
            monkeypatch.setattr(device_module, "driver_finds_gpus", lambda found=finds_gpus: found)
            assert find_device("auto") == Device("cpu")


class TestDtype:
    @pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
    def test_a_gpu_keeps_the_files_dtype_and_a_cpu_notes_that_it_does_not(self, tmp_path, dtype, name):
        source = select_source(save_tutorial(lively_model(tiny_config()).to(dtype), tmp_path))
        assert choose_dtype("auto", source, Device("cuda", 0)) == (name, [])
        chosen, notes = choose_dtype("auto", source, Device("cpu"))
        assert chosen == "float32"
        assert f"--dtype {name} keeps it" in notes[0]
        assert choose_dtype("bfloat16", source, Device("cpu")) == ("bfloat16", [])

    def test_random_weights_and_double_precision_files_are_float32(self, tmp_path):
        double = select_source(save_tutorial(lively_model(tiny_config()).double(), tmp_path))
        for source in (double, select_source(preset="gpt2-small")):
            for device in (("cpu",), ("cuda", 0)):
                assert choose_dtype("auto", source, Device(*device)) == ("float32", [])


class TestBytes:
    @pytest.mark.parametrize("engine", ["native", "torch"])
    def test_a_step_of_a_mixture_reads_the_experts_of_one_token(self, engine):
        options = [
            "n_layers=1",
            "emb_dim=8",
            "ffn_dim=16",
            "n_experts=4",
            "n_experts_per_token=1",
            "n_heads=2",
        ]
        model = load(select_source(preset="gpt-124m-moe", overrides=options), device="cpu", engine=engine)
        expert, config = 3 * 8 * 16, model.config
        dense = 50257 * 8 + 4 * 8 * 8 + 8 + 8 * 4 + 3 * 2 * 8  # head, attention, router, norms
        dense += 3 * 8 if config.qkv_bias else 0
        assert model.bytes_per_step == 4 * (dense + expert)
        assert model.weight_bytes == 4 * (dense + 4 * expert + (50257 + config.context_length) * 8)


class TestMemory:
    @pytest.mark.usefixtures("two_gpus")
    def test_a_model_too_large_for_a_gpu_is_refused_before_it_is_loaded(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10**9, 2 * 10**9))
        source = select_source(preset="gpt2-xl")
        with pytest.raises(ResourceError) as error:
            load(source, device="cuda", dtype="float32", seed=1, cache_tokens=1024)
        assert "float32 weights (6,230,444,800) and key/value cache (629,145,600)" in str(error.value)
        assert "there are 1,000,000,000" in str(error.value)

    def test_a_mapped_file_needs_no_memory_and_a_cast_one_does(self, tmp_path, monkeypatch):
        source = select_source(save_huggingface(lively_model(tiny_config()), tmp_path))
        monkeypatch.setattr(device_module, "available_bytes", lambda: 1000)
        load(source, device="cpu", dtype="float32", seed=1, cache_tokens=0)
        with pytest.raises(ResourceError, match="not enough memory: bfloat16 weights"):
            load(source, device="cpu", dtype="bfloat16", seed=1, cache_tokens=0)
        with pytest.raises(ResourceError, match="not enough memory: int8 and float32 weights"):
            load(source, device="cpu", dtype="float32", quantize=True, seed=1, cache_tokens=0)

    @pytest.mark.parametrize("version", [1, 2])
    def test_limits_of_the_cgroup_and_of_its_parents_count(self, tmp_path, monkeypatch, version):
        root = tmp_path if version == 2 else tmp_path / "memory"
        inner = root / "outer" / "inner"
        inner.mkdir(parents=True)
        limit, used = ("memory.max", "memory.current")
        if version == 1:
            limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        prefix = "total_" if version == 1 else ""
        for folder in (inner, inner.parent, root):
            (folder / used).write_text("4000")
            (folder / "memory.stat").write_text(f"{prefix}inactive_file 2000\n{prefix}active_file 500\nx 1\n")
        (tmp_path / "membership").write_text(
            "5:cpu,cpuacct:/else\n" + ("0::/outer/inner\n" if version == 2 else "4:memory:/outer/inner\n")
        )
        monkeypatch.setattr(cgroup, "ROOT", tmp_path)
        monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")
        (root / limit).write_text("max")
        for own, outer in ((10_000, 5000), (4500, 5000)):  # the smaller of them counts
            (inner / limit).write_text(str(own))
            (inner.parent / limit).write_text(str(outer))
            assert memory.available_bytes() == min(own, outer) - 1500
        (tmp_path / "membership").write_text(f"4:{'memory' if version == 1 else ''}:/not/there\n")
        assert 10_000 < memory.available_bytes() < 1 << 50  # of the machine

    @pytest.mark.usefixtures("two_gpus")
    @pytest.mark.parametrize(
        ("free", "fits"),
        [
            (4 * 10**9, "--dtype bfloat16 or --preset gpt2-large"),
            (600 * 10**6, "--preset gpt2-small"),
            (9, "a machine"),
        ],
    )
    def test_what_would_fit_is_named(self, monkeypatch, free, fits):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 10**12))
        with pytest.raises(ResourceError, match=f"; take {fits}"):
            load(select_source(preset="gpt2-xl"), device="cuda", dtype="float32", seed=1, cache_tokens=64)


class TestEngine:
    def test_native_and_torch_decode_the_same_text(self, cli):
        native, plain = (
            cli("generate", "The King", "-q", "--stats", "--engine", n) for n in ("native", "torch")
        )
        assert native.out == plain.out
        assert "native kernels" in native.err
        assert "PyTorch" in plain.err

    def test_an_activation_without_a_kernel_decodes_in_pytorch_and_cannot_be_forced(self, cli, monkeypatch):
        options = ("generate", "Hi", "-n", 2, "-p", "gpt-124m-swiglu", "--set", "n_layers=1", "--stats")
        monkeypatch.setattr(native_runtime, "ACTIVATIONS", ("identity", "gelu"))
        result = cli(*options)
        assert result.status == 0
        assert "PyTorch (activation silu has no kernel)" in result.err
        result = cli(*options, "-q", "--engine", "native")
        assert (result.status, result.out) == (1, "")
        assert "--engine native: activation silu has no kernel" in result.err

    def test_every_instruction_set_can_be_forced_and_writes_the_same_text(self, process):
        outputs = set()
        for name in library.usable_variants():
            result = process("generate", "The King", "-q", "--stats", "--kernels", name)
            assert f"native kernels ({name})" in result.stderr.decode()
            outputs.add(result.stdout)
        assert len(outputs) == 1
        result = process("generate", "The King", "--kernels", "vax")
        assert result.returncode == 1
        assert b"--kernels vax: no kernels 'vax' for this processor, which runs" in result.stderr

    def test_without_compiled_kernels_pytorch_decodes_and_a_note_says_so(self, cli, monkeypatch, tmp_path):
        expected = cli("generate", "The King", "-q").out
        library.load_library.cache_clear()
        monkeypatch.setattr(library, "LIBRARY", tmp_path / "kernels.so")
        try:
            missing = cli("generate", "The King")
            (tmp_path / "kernels.so").write_text("no library")
            broken = cli("generate", "The King", "--stats")
            refused = cli("generate", "The King", "--engine", "native")
        finally:
            library.load_library.cache_clear()
        assert missing.out == broken.out == expected
        assert "note: PyTorch decodes, more slowly: the native kernels were not compiled" in missing.err
        assert "the compiled kernels cannot be loaded" in broken.err
        assert refused.status == 1
