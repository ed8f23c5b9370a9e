"""One model over several processes: the text is that of one process, and the failure of one ends all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gptcli.config.parallel_cost import all_reduces_per_layer
from gptcli.config.partition import Rank, check_world_size, parameters_per_rank, shard_of
from gptcli.config.shapes import parameter_shapes
from tests.models import lively_model, save_huggingface, save_tutorial, tiny_config, tiny_values, write_yaml

ROOT = Path(__file__).parents[2]
# Sizes that 2 and 3 processes cannot share evenly: 5 heads, 97 tokens, 53 columns, 5 experts.
SIZES = {"emb_dim": 30, "n_heads": 5, "context_length": 16, "ffn_dim": 53, "ffn_bias": True}
MODELS = {
    "gpt2": {"tie_embeddings": True},
    "tutorial": {"qkv_bias": False},
    "swiglu": {"feed_forward": "swiglu"},
    "moe": {"feed_forward": "moe", "n_experts": 5, "n_experts_per_token": 2},
    "moe-swiglu": {
        "feed_forward": "moe",
        "expert_feed_forward": "swiglu",
        "n_experts": 5,
        "n_experts_per_token": 2,
        "n_shared_experts": 1,
        "tie_embeddings": True,
    },
    "swish": {"activation": "swish", "swish_learn_beta": True, "norm_unbiased": True},
}


def torchrun(n: int, *arguments: object, module: str = "gptcli", **options) -> subprocess.Popen[str]:
    """Start N processes with this Python."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", "-m"]
    return subprocess.Popen(
        [*command, module, *map(str, arguments)],
        cwd=options.pop("cwd", ROOT),
        env=os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {}),
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ours(err: str) -> list[str]:
    """Return the lines of stderr that are gptcli's: torchrun reports a failure in many of its own."""
    return [line for line in err.splitlines() if line.startswith(("error:", "note:", "warning:"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("parallel")
    saved = {}
    for name, changes in MODELS.items():
        model = lively_model(tiny_config(**(SIZES | changes)))
        saved[name] = (save_huggingface if name == "gpt2" else save_tutorial)(model, folder / name)
    return saved


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    """Save a checkpoint with GPT-2's vocabulary, so that it reads text."""
    model = lively_model(tiny_config(**SIZES, vocab_size=50257, tie_embeddings=True))
    return save_huggingface(model, tmp_path_factory.mktemp("parallel") / "gpt2")


class TestShards:
    @pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_shards_hold_every_parameter_once_but_for_the_replicated_ones(self, changes, size):
        config = tiny_config(**(SIZES | changes))
        everyones = [Rank(rank, size) for rank in range(size)]
        for name, shape in parameter_shapes(config).items():
            parts = [part for ranks in everyones if (part := shard_of(name, config, ranks))]
            axes = {part.axis for part in parts}
            assert len(axes) == 1
            if axes == {None}:  # held whole, by every process or, an expert, by one
                assert len(parts) == (1 if ".fc" in name else size)
            else:
                spans = [position for part in parts for position in part.span]
                assert spans == list(range(shape[axes.pop()]))
        total = sum(parameters_per_rank(config, ranks) for ranks in everyones)
        assert total >= parameters_per_rank(config, Rank(0, 1))

    def test_shards_of_gpt2_xl_have_whole_heads_and_nearly_equal_sizes(self):
        from gptcli.config.presets import resolve_options

        config = resolve_options("gpt2-xl", None, []).config
        first, second = (shard_of("trf_blocks.0.att.W_key.weight", config, Rank(r, 2)) for r in (0, 1))
        assert (len(first.span), len(second.span)) == (12 * 64, 13 * 64)
        first, second = (parameters_per_rank(config, Rank(r, 2)) for r in (0, 1))
        assert first < second < 1.04 * first
        check_world_size(config, 25)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_text_and_logits_are_those_of_one_process(n, checkpoints):
    run = torchrun(n, *checkpoints.values(), module="tests.parallel.worker")
    out, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    found = {line["path"]: line for line in map(json.loads, out.splitlines())}
    assert list(found) == list(MODELS)
    for name, record in found.items():
        config = tiny_config(**(SIZES | MODELS[name]))
        assert record["logits"] < 1e-4
        assert record["exact"] < (1e-6 if "moe" in MODELS[name].get("feed_forward", "") else 1e-12)
        assert record["logprobs"] < 1e-4
        ways = ("cached", "not cached", "batched", "speculative", "sampled")
        assert {way: record[way] for way in ways} == dict.fromkeys(ways, True)
        assert record["held"] == parameters_per_rank(config, Rank(0, n)) < 0.75 * record["of"]
        assert record["sums"] == config.n_layers * all_reduces_per_layer(config) + 1
        assert len(set(record["broken"])) == 1
        assert "not finite after 6 tokens" in record["broken"][0]


class TestPlanning:
    """The figures of `params --tensor-parallel`, computed by hand from the published sizes."""

    def record(self, cli, preset: str, n: int, *options: object) -> dict:
        result = cli("params", "-p", preset, "--tensor-parallel", n, "--json", *options)
        return json.loads(result.out)["tensor_parallel"]

    def test_one_process_holds_and_reads_the_whole_model_and_sends_nothing(self, cli):
        record = self.record(cli, "gpt2-small", 1)
        assert record["parameters_per_process"] == 124_439_808
        assert record["parameters_read_per_token"] == 124_439_808 - 1024 * 768
        assert record["kv_bytes_per_token_per_process"]["float32"] == 73_728
        assert record["bytes_sent_per_token"] == {"float32": 0, "bfloat16": 0}

    def test_gpt3_over_eight_processes(self, cli):
        record = self.record(cli, "gpt3-175b", 8)
        C, V, S, L = 12288, 50257, 2048, 96
        whole = S * C + L * (2 * C + 2 * C + C + C) + 2 * C  # positions, norms, biases after a sum
        cut = L * (4 * C * C + 3 * C + 8 * C * C + 4 * C) // 8
        assert record["parameters_per_process"] == whole + cut + 6283 * C  # V / 8, rounded up for one
        assert 6282 * 8 <= V <= 6283 * 8
        assert record["bytes_sent_per_token_per_layer"]["bfloat16"] == 2 * 2 * 7 / 8 * C * 2
        assert record["kv_bytes_per_token_per_process"]["bfloat16"] == 2 * L * C * 2 // 8
        h100 = next(gpu for gpu in record["gpus_bfloat16"] if gpu["gpu"].startswith("H100"))
        read = (record["parameters_per_process"] - S * C) * 2 + 2 * L * C * 2 * S / 8
        assert h100["tokens_per_second_at_most_with_these"] == pytest.approx(3.35e12 / read, rel=1e-3)
        # Five times 72 GB hold 349 of weights and 9.7 of cache, but five shards of 96 heads are uneven.
        assert h100["needed"] == 6

    def test_a_mixture_reads_the_experts_of_a_token(self, cli):
        one = self.record(cli, "gpt-124m-moe", 1)
        assert one["parameters_read_per_token"] < one["parameters_per_process"] / 2
        assert one["sums_per_layer"] == 2

    def test_more_processes_than_heads_are_refused_with_the_numbers_that_work(self, cli):
        for n in (0, 26, 10**9):
            result = cli("params", "-p", "gpt2-xl", "--tensor-parallel", n)
            assert result.status == 2
            assert "take 1 to 25" in result.err
        assert cli("params", "--all", "--tensor-parallel", 2).status == 2

    def test_a_model_that_no_number_of_gpus_holds_is_answered_at_once(self, process, tmp_path):
        sizes = {"emb_dim": 500_000_000, "n_heads": 500_000_000}
        source = write_yaml(tmp_path / "huge.yaml", tiny_values(**sizes))
        result = process("params", "-c", source, "--tensor-parallel", 8)  # before its timeout of two minutes
        assert result.returncode == 0
        assert b"do not fit" in result.stdout

    def test_the_table_shows_the_same_figures(self, cli):
        out = cli("params", "-p", "gpt3-175b", "--tensor-parallel", 8).out
        record = self.record(cli, "gpt3-175b", 8)
        assert f"{record['parameters_per_process']:,}" in out
        assert f"{record['bytes_sent_per_token_per_layer']['bfloat16']:,}" in out
        assert next(line for line in out.splitlines() if line.startswith("RTX")).split()[4] == "18"


@pytest.mark.slow
class TestCommand:
    def test_the_text_is_printed_once_and_stdin_is_read_once(self, cli, gpt2):
        alone = cli("generate", "-w", gpt2, "-n", 20, "-q", stdin=b"Hi there")
        run = torchrun(2, "generate", "-w", gpt2, "-n", 20, "-q", stdin=subprocess.PIPE)
        out, err = run.communicate("Hi there", timeout=120)
        assert (run.returncode, out, ours(err)) == (0, alone.out, [])

    def test_each_record_is_written_once(self, cli, gpt2, tmp_path):
        source = tmp_path / "p.txt"
        source.write_text("\n".join(["Hi", "", "a b", "x " * 50, "\x1b"]))
        options = ("generate", "-i", source, "-w", gpt2, "-n", 12, "--batch-size", 2, "--logprobs")
        assert cli(*options, "-o", tmp_path / "one.jsonl").status == 0
        run = torchrun(2, *options, "-o", tmp_path / "two.jsonl")
        _, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        one, two = (
            [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
            for name in ("one.jsonl", "two.jsonl")
        )
        for alone, shared in zip(one, two, strict=True):
            assert shared["completion_ids"] == alone["completion_ids"]
            assert shared["logprobs"] == pytest.approx(alone["logprobs"], abs=2e-4)
            assert shared["device"]["processes"] == 2

    def test_only_the_first_process_writes_the_file(self, tmp_path):
        for rank in range(2):
            (tmp_path / str(rank)).mkdir()
        code = (
            "import os, sys; os.chdir(os.environ['RANK']); from gptcli.cli.app import main;"
            " sys.argv = ['gptcli', 'generate', 'Once', '-n', '3', '-q', '-o', 'answer.txt']; main()"
        )
        (tmp_path / "elsewhere.py").write_text(code)
        run = torchrun(2, module="elsewhere", cwd=tmp_path)
        out, err = run.communicate(timeout=120)
        assert (run.returncode, out) == (0, ""), err
        assert (tmp_path / "0" / "answer.txt").read_text().startswith("Once")
        assert list((tmp_path / "1").iterdir()) == []

    def test_a_command_without_a_shared_model_answers_once(self, cli):
        run = torchrun(2, "params", "-p", "stories")
        out, _ = run.communicate(timeout=120)
        assert (run.returncode, out) == (0, cli("params", "-p", "stories").out)

    def test_without_torchrun_nothing_parallel_is_imported(self, gpt2):
        code = (
            "import sys; from gptcli.cli.app import run; run(sys.argv[1:]);"
            " print([m for m in sys.modules if 'gptcli.parallel' in m or m.endswith('.shard')])"
        )
        command = [sys.executable, "-c", code, "generate", "Hi", "-n", "3", "-q", "-w", str(gpt2)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
class TestFaults:
    """Faults that end all processes within seconds, with one line of ours and status 1."""

    def end(self, run: subprocess.Popen[str], seconds: float = 90) -> str:
        _, err = run.communicate(timeout=seconds)
        assert run.returncode == 1
        error = ours(err)
        assert len(error) == 1, err
        assert "Traceback" not in err.partition("torch/distributed/elastic")[0]
        return error[0]

    def test_more_processes_than_heads(self, gpt2):
        run = torchrun(6, "generate", "Hi", "-w", gpt2, "-q")
        assert self.end(run) == "error: 6 processes cannot share 5 heads: take 1 to 5"

    def test_a_file_that_is_not_there(self):
        error = self.end(torchrun(2, "generate", "Hi", "-w", "nowhere", "-q"))
        assert error.startswith("error: nowhere: no such weights file")

    def test_wrong_usage(self):
        assert "--num-samples 0" in self.end(torchrun(2, "generate", "Hi", "--num-samples", 0))

    def test_a_gpu_by_number(self, gpt2):
        error = self.end(torchrun(2, "generate", "Hi", "-w", gpt2, "--device", "cuda:1", "-q"))
        assert "every process takes its own GPU" in error

    def test_a_process_with_another_file(self, tmp_path):
        for rank, seed in enumerate((0, 1)):
            save_huggingface(lively_model(tiny_config(**SIZES, vocab_size=50257), seed), tmp_path / str(rank))
        # As on two machines: the same path with other bytes.
        code = (
            "import os, sys; os.chdir(os.environ['RANK']); from gptcli.cli.app import main;"
            " sys.argv = ['gptcli', 'generate', 'Hi', '-w', '.', '-q']; main()"
        )
        (tmp_path / "elsewhere.py").write_text(code)
        error = self.end(torchrun(2, module="elsewhere", cwd=tmp_path))
        assert error == "error: process 1 differs from process 0 in its weights file"

    def test_too_few_processes_come(self, gpt2):
        code = (
            "import datetime, sys; from gptcli.parallel import process_group;"
            " process_group.JOIN_TIMEOUT = datetime.timedelta(seconds=2); from gptcli.cli.app import main;"
            " sys.argv = ['gptcli', 'generate', 'Hi', '-q', '-w', sys.argv[1]]; main()"
        )
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "x"}
        number = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(gpt2)],
            cwd=ROOT,
            env=os.environ | where | number,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert ours(done.stderr)[0].startswith("error: the 2 processes of this run did not meet")

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_process_that_is_killed_midway(self, rank, gpt2, tmp_path):
        source = tmp_path / "p.txt"
        source.write_text("Hi\n" * 20_000)
        run = torchrun(2, "generate", "-i", source, "-w", gpt2, "-q", "-n", 3, "-o", tmp_path / "r.jsonl")
        deadline = time.monotonic() + 60
        while not (tmp_path / "r.jsonl").exists() or not (tmp_path / "r.jsonl").stat().st_size:
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children}
        victim = next(pid for pid, lines in environments.items() if f"RANK={rank}".encode() in lines)
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        error = self.end(run)
        assert time.monotonic() - start < 30
        assert "another process of this run ended" in error or "another process failed" in error
        assert len(error) < 160  # the first sentence of PyTorch's error
        assert all(json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines())
