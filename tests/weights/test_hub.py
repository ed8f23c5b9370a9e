"""Weights from a hub on loopback: downloads, the cache, and every way to fail."""

import json
import logging
import sys
import time
from pathlib import Path

import huggingface_hub
import huggingface_hub.utils.logging as hub_logging
import huggingface_hub.utils.tqdm
import pytest

from gptcli.errors import WeightsError
from gptcli.weights.hub import fetch
from tests.models import lively_model, save_huggingface, tiny_config
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


def test_a_repository_gives_the_text_of_its_files_and_only_needed_files_are_fetched(
    ask, hub, folder, process
):
    done = ask(*ASK, "-w", NAME)
    assert done.returncode == 0, done.stderr
    assert f"revision {COMMIT[:12]}" in done.stderr.decode()
    here = json.loads(process(*ASK, "-w", folder / "model.safetensors").stdout)
    assert json.loads(done.stdout)["completion_ids"] == here["completion_ids"]
    fetched = {path for method, path in hub.requests if method == "GET" and "/api/" not in path}
    assert fetched == {f"/{REPOSITORY}/resolve/{COMMIT}/config.json", "/cdn/model.safetensors"}
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
        (("-w", "hf:gpt2"), "expected hf:owner/name"),
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
    monkeypatch.setattr("gptcli.weights.hub._hub_answers", lambda: True)
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
