"""The Python API, and completion by the shell's Tab key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gptcli
from gptcli.errors import UsageError, WeightsError
from tests.models import lively_model, save_huggingface, tiny_config

ROOT = Path(__file__).parents[1]


class TestPython:
    @pytest.fixture
    def folder(self, tmp_path):
        model = lively_model(tiny_config(vocab_size=50257, context_length=32, tie_embeddings=True))
        return save_huggingface(model, tmp_path)

    def test_the_same_text_as_the_command_and_nothing_printed(self, folder, cli, capfd):
        record = json.loads(cli("generate", "Hello", "-w", folder, "-n", 8, "--json").out)
        model = gptcli.load_model(folder)
        done = gptcli.generate(model, "Hello", max_new_tokens=8)
        assert (done.text, done.ids) == (record["completion"], record["completion_ids"])
        assert done.finish_reason == "length"
        assert capfd.readouterr() == ("", "")

    def test_sampling_gives_the_text_of_the_command(self, folder, cli):
        arguments = ("generate", "Hello", "-w", folder, "-n", 8, "--json", "--temperature", 2, "--seed", 4)
        record = json.loads(cli(*arguments).out)
        done = gptcli.generate(gptcli.load_model(folder), "Hello", max_new_tokens=8, temperature=2.0, seed=4)
        assert done.ids == record["completion_ids"]

    def test_errors_are_those_of_gptcli_errors(self, folder):
        with pytest.raises(WeightsError, match="no such weights"):
            gptcli.load_model("/no/such")
        with pytest.raises(UsageError, match="--temperature"):
            gptcli.generate(gptcli.load_model(folder), "Hello", temperature=-1.0)
        with pytest.raises(AttributeError, match="no attribute 'generat'"):
            _ = gptcli.generat


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("gptcli generate --preset gpt2-", {"gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"}),
        ("gptcli params -p gpt-124m-s", {"gpt-124m-swiglu"}),
        ("gptcli generate --device c", {"cpu", "cuda", "cuda:0"}),
        ("gptcli generate --dtype b", {"bfloat16"}),
        ("gptcli plot-activation sw", {"swish", "swiglu"}),
    ],
)
def test_tab_completes(words, expected):
    env = os.environ | {
        "_GPTCLI_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from gptcli.cli.app import app; app(prog_name='gptcli')"
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert set(run.stdout.split()) == expected
