"""Weights from a hub on loopback: downloads, the cache, and every way to fail."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub
import huggingface_hub.utils.logging as hub_logging
import huggingface_hub.utils.tqdm
import pytest
import torch
from safetensors.torch import load_file

from gptcli.errors import UsageError, WeightsError
from gptcli.weights.hub import fetch
from gptcli.weights.hub_names import HubName, is_hub_name, parse_hub_name
from tests.models import huggingface_state, lively_model, save_huggingface, tiny_config
from tests.tokenizer.made import gpt2_style, save_whole
from tests.weights.hub_server import COMMIT, Hub, files_of, running

hub_tqdm = sys.modules["huggingface_hub.utils.tqdm"]
REPOSITORY = "someone/tiny-gpt2"
NAME = f"hf:{REPOSITORY}"
ASK = ("generate", "Hi", "-n", "4", "--json")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Save a checkpoint with GPT-2's vocabulary, next to files that are not needed."""
    model = lively_model(tiny_config(vocab_size=50257, tie_embeddings=True))
    folder = save_huggingface(model, tmp_path / "repository")
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 50256]}')
    for name in ("pytorch_model.bin", "README.md", "onnx/model.safetensors", "config.json.orig"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not for us")
    return folder


@pytest.fixture
def hub(folder):
    with running(Hub(REPOSITORY, files_of(folder))) as hub:
        yield hub


@pytest.fixture
def ask(process, hub, tmp_path):
    """Return a function that runs a command with that hub and a cache of its own."""

    def call(*arguments: object, **env: str):
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        return process(*arguments, env=variables | {"no_proxy": "127.0.0.1,localhost"} | env)

    return call


def assert_one_line(done, *parts: str) -> None:
    error = done.stderr.decode()
    assert done.returncode == 1, error
    assert done.stdout == b""
    assert error.startswith(f"error: {NAME}: ")
    assert len(error.splitlines()) == 1
    for part in parts:
        assert part in error


def test_a_repository_brings_its_tokenizer(hub, ask, folder):
    model = lively_model(tiny_config(vocab_size=323, tie_embeddings=True))
    save_huggingface(model, save_whole(gpt2_style(), folder))
    hub.files = files_of(folder)
    record = json.loads(ask(*ASK, "-w", NAME).stdout)
    assert record["prompt_ids"] == gpt2_style().encode("Hi").ids
    assert record["model"]["tokenizer"].endswith("tokenizer.json")


def test_a_repository_gives_the_text_of_its_files_and_only_needed_files_are_fetched(
    ask, hub, folder, process
):
    done = ask(*ASK, "-w", NAME)
    assert done.returncode == 0, done.stderr
    assert f"revision {COMMIT[:12]}" in done.stderr.decode()
    here = json.loads(process(*ASK, "-w", folder / "model.safetensors").stdout)
    assert json.loads(done.stdout)["completion_ids"] == here["completion_ids"]
    fetched = {path for method, path in hub.requests if method == "GET" and "/api/" not in path}
    configs = {f"/{REPOSITORY}/resolve/{COMMIT}/{name}.json" for name in ("config", "generation_config")}
    assert fetched == configs | {"/cdn/model.safetensors"}
    assert b"\r" not in done.stderr  # stderr is not a terminal, so there is no progress bar


def test_what_is_cached_needs_no_request_offline(ask, hub):
    first = ask(*ASK, "-w", NAME)
    hub.requests.clear()
    again = ask(*ASK, "-w", NAME, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert hub.requests == []
    assert json.loads(again.stdout)["completion_ids"] == json.loads(first.stdout)["completion_ids"]
    hub.status = 503  # with a hub that is down the cache serves as well
    assert ask(*ASK, "-w", NAME).returncode == 0


def test_inspect_reads_a_repository_too(ask, folder):
    done = ask("inspect", NAME)
    assert done.returncode == 0, done.stderr
    assert b"h.0.attn.c_attn.weight" in done.stdout
    assert ask("inspect", folder / "model.safetensors", "--diff", NAME).returncode == 0


def test_a_revision(ask):
    assert ask(*ASK, "-w", f"{NAME}@v1").returncode == 0
    done = ask(*ASK, "-w", f"{NAME}@v2")
    assert done.returncode == 1
    assert done.stderr.decode() == f"error: {NAME}@v2: the repository has no such revision\n"


def test_a_private_repository_opens_with_the_token(ask, hub):
    hub.token = "hf_secret"
    assert_one_line(ask(*ASK, "-w", NAME), "no such repository", "HF_TOKEN")
    assert ask(*ASK, "-w", NAME, HF_TOKEN="hf_secret").returncode == 0


def test_a_gated_repository(ask, hub):
    hub.token, hub.error_code = "hf_secret", "GatedRepo"
    assert_one_line(ask(*ASK, "-w", NAME), "accept terms", f"{hub.url}/{REPOSITORY}", "HF_TOKEN")


def test_a_repository_that_is_not_there(ask, hub):
    hub.status, hub.error_code = 404, "RepoNotFound"
    assert_one_line(ask(*ASK, "-w", NAME), "no such repository", hub.url)


def test_a_download_that_breaks_off_continues_where_it_broke(ask, hub, tmp_path):
    model = lively_model(tiny_config(vocab_size=50257, emb_dim=128, tie_embeddings=True))
    hub.files = files_of(save_huggingface(model, tmp_path / "larger"))  # than a piece of 10 MiB
    hub.cut_after = 15_000_000
    done = ask(*ASK, "-w", NAME)
    if done.returncode:  # the library did not try again by itself
        assert_one_line(done, "the download failed", "run it again")
        done = ask(*ASK, "-w", NAME)
    assert done.returncode == 0, done.stderr
    assert len(hub.ranges) == 1
    assert int(hub.ranges[0].removeprefix("bytes=").rstrip("-")) >= 10 << 20


def test_an_incomplete_file_is_never_used(ask, hub, tmp_path):
    hub.cut_after, hub.always_cut = 1000, True
    assert_one_line(ask(*ASK, "-w", NAME), "the download failed", "run it again")
    assert not list((tmp_path / "hf").rglob("snapshots/*/model.safetensors"))
    hub.cut_after = None
    assert ask(*ASK, "-w", NAME).returncode == 0


def test_without_a_network_one_line_says_how_to_get_the_files(ask, tmp_path):
    start = time.monotonic()
    for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        done = ask(*ASK, "-w", NAME, **env)
        assert_one_line(done, str(tmp_path / "hf"), f"hf download {REPOSITORY}", "--weights")
    assert time.monotonic() - start < 60


@pytest.mark.slow
def test_a_hub_that_never_answers_does_not_hang_the_program(ask, hub):
    hub.silent = True
    assert_one_line(ask(*ASK, "-w", NAME), "no answer from", "hf download")


def test_a_repository_without_safetensors(ask, hub):
    del hub.files["model.safetensors"], hub.files["onnx/model.safetensors"]
    assert_one_line(ask(*ASK, "-w", NAME), "no .safetensors file")


def test_official_weights_are_those_of_openai(ask, hub):
    """The error names the right repository, which this hub does not have."""
    done = ask(*ASK, "-p", "GPT2-medium", "--pretrained")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: hf:openai-community/gpt2-medium: no such repository")
    assert ("GET", "/api/models/openai-community/gpt2-medium/revision/main") in hub.requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-w", "hf:"), "expected hf:owner/name"),
        (("-w", "hf:unknown"), "expected hf:owner/name"),
        (("-w", "hf:a/b/c"), "expected hf:owner/name"),
        (("-w", "hf:a/b@"), "expected hf:owner/name"),
        (("-w", "hf:a/[b]"), "not a repository name"),
        (("--pretrained",), "--pretrained needs a preset"),
        (("--pretrained", "-p", "stories"), "stories has no official weights; gpt2-small,"),
        (("--pretrained", "-p", "gpt2-small", "-w", "x"), "both name weights"),
    ],
    ids=str,
)
def test_impossible_repository_names_are_wrong_usage(cli, arguments, message):
    result = cli("generate", "Hi", *arguments)
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("had_bars", [True, False])
@pytest.mark.parametrize("wants_bars", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_librarys_output_is_left_as_it_was(monkeypatch, tmp_path, had_bars, wants_bars, fails):
    """The log level and the progress bars of huggingface_hub belong to the whole process."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    during = []

    def download(*_, **__):
        during.append((hub_logging.get_verbosity(), not hub_tqdm.are_progress_bars_disabled()))
        if fails:
            raise RuntimeError("no luck")
        return tmp_path

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("gptcli.weights.hub._ask_hub", lambda _: "answers")
    monkeypatch.setattr(hub_tqdm, "progress_bar_states", {"_global": had_bars})
    before = hub_logging.get_verbosity()
    hub_logging.set_verbosity_info()
    try:
        if fails:
            with pytest.raises(WeightsError, match="no luck"):
                fetch(NAME, show_progress=wants_bars)
        else:
            assert fetch(NAME, show_progress=wants_bars) == tmp_path
        assert during == [(logging.ERROR, wants_bars)]
        assert hub_logging.get_verbosity() == logging.INFO
        assert hub_tqdm.are_progress_bars_disabled() != had_bars
    finally:
        hub_logging.set_verbosity(before)


class TestNames:
    """What people type: old names, URLs, single files, references of the hub."""

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("hf:gpt2", HubName("openai-community/gpt2")),
            ("hf:gpt2-xl", HubName("openai-community/gpt2-xl")),
            ("hf:distilgpt2", HubName("distilbert/distilgpt2")),
            ("hf:a/b@refs/pr/1", HubName("a/b", "refs/pr/1")),
            ("hf:a/b/m.safetensors", HubName("a/b", None, "m.safetensors")),
            ("hf:a/b/sub/m.safetensors@v1", HubName("a/b", "v1", "sub/m.safetensors")),
            ("hf:a/b@refs/pr/1/m.safetensors", HubName("a/b", "refs/pr/1", "m.safetensors")),
            ("hf://a/b", HubName("a/b")),
            ("https://huggingface.co/a/b", HubName("a/b")),
            ("https://huggingface.co/gpt2", HubName("openai-community/gpt2")),
            ("huggingface.co/a/b/", HubName("a/b")),
            ("https://huggingface.co/a/b/tree/main", HubName("a/b")),
            ("https://huggingface.co/a/b/tree/refs%2Fpr%2F1", HubName("a/b", "refs/pr/1")),
            ("https://hf.co/a/b/blob/v1/README.md", HubName("a/b", "v1")),
            (
                "https://huggingface.co/a/b/resolve/main/s/m.safetensors?download=true",
                HubName("a/b", None, "s/m.safetensors"),
            ),
        ],
    )
    def test_each_names_its_repository(self, name, expected):
        for typed in (name, str(Path(name))):  # a path has one slash where a URL has two
            assert is_hub_name(typed)
            assert parse_hub_name(typed) == expected

    @pytest.mark.parametrize(
        "name",
        ["hf:", "hf:unknown", "hf:a/b/c", "hf:a/b@", "https://github.com/a/b", "https://huggingface.co/x"],
    )
    def test_what_names_no_repository_is_wrong_usage(self, name):
        with pytest.raises(UsageError, match="expected hf:owner/name"):
            parse_hub_name(name)

    @pytest.mark.parametrize(
        ("typed", "hint"),
        [
            ("openai-community/gpt2", "give hf:openai-community/gpt2"),
            ("gpt2", "give hf:openai-community/gpt2"),
        ],
    )
    def test_a_path_that_looks_like_a_repository_gets_a_hint(self, cli, tmp_path, monkeypatch, typed, hint):
        monkeypatch.chdir(tmp_path)
        result = cli("inspect", typed)
        assert (result.status, result.err.count("\n")) == (1, 1)
        assert hint in result.err
        assert "hf:" not in cli("inspect", tmp_path / "none").err

    def test_old_names_and_urls_are_fetched_from_their_repository(self, process, folder, tmp_path):
        with running(Hub("openai-community/gpt2", files_of(folder))) as hub:
            env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
            env |= {"no_proxy": "127.0.0.1,localhost"}
            for name in ("hf:gpt2", f"{hub.url}/openai-community/gpt2/tree/main"):
                done = process("inspect", name, env=env)
                assert done.returncode == 0, done.stderr

    def test_one_file_of_a_repository(self, ask, hub):
        hub.files["other.safetensors"] = hub.files["model.safetensors"]
        hub.files["model.safetensors"] = b"not this one"
        done = ask(*ASK, "-w", f"{NAME}/other.safetensors")
        assert done.returncode == 0, done.stderr
        assert ("GET", "/cdn/other.safetensors") in hub.requests
        assert ("GET", "/cdn/model.safetensors") not in hub.requests
        done = ask(*ASK, "-w", f"{NAME}/none.safetensors")
        assert b"the repository has no file none.safetensors" in done.stderr

    def test_pickles_alone_name_the_conversion_and_the_command(self, ask, hub):
        del hub.files["model.safetensors"], hub.files["onnx/model.safetensors"]
        assert_one_line(ask(*ASK, "-w", NAME), f"{NAME}@refs/pr/1", f"gptcli.convert {NAME} OUTPUT_DIR")


class TestRefusedToken:
    def test_what_is_cached_is_used_with_a_note(self, ask, hub):
        assert ask(*ASK, "-w", NAME).returncode == 0
        hub.token = "hf_good"
        done = ask(*ASK, "-w", NAME, HF_TOKEN="hf_expired")
        assert done.returncode == 0, done.stderr
        assert b"the hub refuses the token (HF_TOKEN, or that of hf auth login)" in done.stderr
        assert ask(*ASK, "-w", NAME, "--quiet", HF_TOKEN="hf_expired").stderr == b""

    def test_without_a_cache_one_line_says_so(self, ask, hub):
        hub.token = "hf_good"
        assert_one_line(ask(*ASK, "-w", NAME, HF_TOKEN="hf_expired"), "refuses the token", "settings/tokens")


def test_a_variable_of_the_library_that_is_out_of_date_prints_nothing(ask):
    done = ask(*ASK, "-w", NAME, "--quiet", HF_HUB_ENABLE_HF_TRANSFER="1")
    assert (done.returncode, done.stderr) == (0, b"")


def test_pickles_of_a_repository_are_converted(hub, tmp_path):
    model = lively_model(tiny_config(vocab_size=50257, tie_embeddings=True))
    del hub.files["model.safetensors"], hub.files["onnx/model.safetensors"]
    torch.save(huggingface_state(model), tmp_path / "pytorch_model.bin")
    hub.files["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    env |= {"no_proxy": "127.0.0.1,localhost", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "gptcli.convert", NAME, "out", "-q"]
    done = subprocess.run(command, env=os.environ | env, cwd=tmp_path, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"wte.weight" in done.stdout
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["wte.weight"], model.tok_emb.weight)
