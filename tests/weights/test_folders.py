"""Folders that are no plain checkpoint: the one model in them is taken, or one line says what to do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gptcli.errors import WeightsError
from gptcli.weights.files import open_checkpoint
from tests.models import huggingface_state, lively_model, save_huggingface, tiny_config

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"


@pytest.fixture
def state():
    return huggingface_state(lively_model(tiny_config()))


def fails(path: Path) -> str:
    with pytest.raises(WeightsError) as error:
        open_checkpoint(path)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestOneModel:
    def test_the_only_safetensors_is_taken_with_the_config_next_to_it(self, state, tmp_path):
        save_file(state, tmp_path / "gpt2-finetuned.safetensors")
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "optimizer.pt").write_bytes(b"x")
        found = open_checkpoint(tmp_path)
        assert found.tensors.keys() == state.keys()
        assert found.config_path == tmp_path / "config.json"

    def test_the_only_one_that_is_a_model_is_taken(self, state, tmp_path):
        save_file(state, tmp_path / "b.safetensors")
        save_file({"exp_avg": torch.ones(2)}, tmp_path / "a.safetensors")
        (tmp_path / "c.safetensors").write_bytes(POINTER)
        assert open_checkpoint(tmp_path).path == tmp_path / "b.safetensors"

    def test_of_two_models_neither_is_guessed(self, state, tmp_path):
        for name in ("a", "b"):
            save_file(state, tmp_path / f"{name}.safetensors")
        assert "several of them are models: a.safetensors, b.safetensors; give one file" in fails(tmp_path)

    def test_files_that_are_no_models(self, tmp_path):
        for name in ("a", "b"):
            save_file({"exp_avg": torch.ones(2)}, tmp_path / f"{name}.safetensors")
        assert "none of them is a model: a.safetensors, b.safetensors" in fails(tmp_path)

    def test_the_only_file_is_named_if_it_cannot_be_read(self, tmp_path):
        (tmp_path / "x.safetensors").write_bytes(POINTER)
        assert fails(tmp_path).startswith(f"{tmp_path / 'x.safetensors'}: a Git LFS pointer")


class TestShards:
    NAME = "model-00002-of-00003.safetensors"

    def test_a_shard_alone(self, state, tmp_path):
        save_file(state, tmp_path / self.NAME)
        for path in (tmp_path, tmp_path / self.NAME):
            message = fails(path)
            assert message.startswith(f"{tmp_path / self.NAME}: shard 2 of 3 of a model; put all of them")
            assert "model.safetensors.index.json" in message

    def test_a_shard_next_to_its_index_points_to_the_folder(self, state, tmp_path):
        save_file(state, tmp_path / self.NAME)
        (tmp_path / "model.safetensors.index.json").write_text("{}")
        assert f"give the folder, {tmp_path}" in fails(tmp_path / self.NAME)

    def test_shard_1_of_1_is_a_model(self, state, tmp_path):
        save_file(state, tmp_path / "model-00001-of-00001.safetensors")
        assert open_checkpoint(tmp_path).tensors.keys() == state.keys()


class TestAdapters:
    @pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
    def test_an_adapters_folder(self, tmp_path, weights):
        save_file({"base_model.model.h.0.attn.c_attn.lora_A.weight": torch.ones(1)}, tmp_path / weights)
        (tmp_path / "adapter_config.json").write_text("{}")
        message = fails(tmp_path)
        assert "an adapter (LoRA), not a model" in message
        assert "merge_and_unload()" in message

    def test_an_adapter_next_to_a_model_is_not_left_out_in_silence(self, tmp_path):
        save_huggingface(lively_model(tiny_config()), tmp_path)
        (tmp_path / "adapter_config.json").write_text("{}")
        assert "adapter" in fails(tmp_path)
        assert open_checkpoint(tmp_path / "model.safetensors").tensors


class TestPickles:
    @pytest.mark.parametrize(
        "name", ["x.pt", "x.pth", "x.bin", "x.ckpt", "x.pkl", "x y.bin", "without-ending"]
    )
    def test_a_pickle_is_refused_with_the_command_that_converts_it(self, tmp_path, name):
        path = tmp_path / name
        torch.save({"a": torch.ones(1)}, path)
        message = fails(path)
        assert "a pickle can run code" in message
        quoted = f"'{path}'" if " " in name else str(path)
        assert message.endswith(f"python -m gptcli.convert {quoted} OUTPUT_DIR")
        if path.suffix:
            assert fails(tmp_path) == message

    def test_a_trainers_folder_with_pickles_alone(self, tmp_path):
        names = ["pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"]
        for name in [*names, "rng_state_0.pth", "scaler.pt", "config.json"]:
            (tmp_path / name).write_bytes(b"x")
        assert f"gptcli.convert {tmp_path / 'pytorch_model.bin'} OUTPUT_DIR" in fails(tmp_path)

    def test_sharded_pickles_are_converted_as_a_folder(self, tmp_path):
        shards = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
        for name in shards:
            (tmp_path / name).write_bytes(b"x")
        assert f"gptcli.convert {tmp_path} OUTPUT_DIR" in fails(tmp_path)
        index = tmp_path / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": {"wte.weight": shards[0]}}))
        assert f"gptcli.convert {tmp_path} OUTPUT_DIR" in fails(index)

    def test_of_several_pickles_none_is_guessed(self, tmp_path):
        for name in ("ckpt_1.pt", "ckpt_2.pt"):
            (tmp_path / name).write_bytes(b"x")
        message = fails(tmp_path)
        assert "ckpt_1.pt, ckpt_2.pt" in message
        assert "gptcli.convert" in message

    def test_a_pointer_in_place_of_a_pickle(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(POINTER)
        assert "a Git LFS pointer" in fails(tmp_path / "pytorch_model.bin")


class TestSubfolders:
    def test_the_latest_checkpoint_of_a_trainer_is_named(self, state, tmp_path):
        for step in (500, 1000, 90):
            (tmp_path / f"checkpoint-{step}").mkdir()
            save_file(state, tmp_path / f"checkpoint-{step}" / "model.safetensors")
        (tmp_path / "runs").mkdir()
        assert f"give {tmp_path / 'checkpoint-1000'}" in fails(tmp_path)

    def test_an_empty_folder(self, tmp_path):
        assert fails(tmp_path).endswith(
            "neither model.safetensors nor model.safetensors.index.json in this folder"
        )


class TestHubCache:
    @pytest.fixture
    def cache(self, tmp_path):
        folder = tmp_path / "models--someone--tiny"
        for commit in ("aaa", "bbb"):
            save_huggingface(lively_model(tiny_config()), folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        return folder

    def test_its_main_snapshot_is_taken(self, cache):
        (cache / "refs" / "main").write_text("bbb")
        assert open_checkpoint(cache).path == cache / "snapshots" / "bbb"

    def test_without_main_the_only_snapshot(self, cache):
        assert "found aaa, bbb; give its folder" in fails(cache)
        (cache / "snapshots" / "aaa").rename(cache / "aaa")
        assert open_checkpoint(cache).path == cache / "snapshots" / "bbb"
