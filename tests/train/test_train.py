"""Training: the same losses after a resume, weights that `transformers` loads, honest evaluation."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from gptcli.cli import boundary
from gptcli.cli.train import PROGRAM, app
from gptcli.train.checkpoint import save_checkpoint
from gptcli.train.evaluate import Evaluation, evaluate
from gptcli.train.optimizer import Optimizers
from gptcli.train.run import TrainingRun
from gptcli.train.settings import TrainingSettings
from gptcli.weights.layouts import HUGGINGFACE, TUTORIAL
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.save import lay_out, save_model
from tests.models import huggingface_state, lively_model, tiny_config, tiny_values, write_yaml

ROOT = Path(__file__).parents[2]
TEXT = "Once upon a time there was a king who had three sons.\n" * 60


@pytest.fixture
def train(tmp_path, capfd):
    """Run `python -m gptcli.train` in this process; return status, stdout lines as JSON, stderr."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    config = write_yaml(
        tmp_path / "c.yaml",
        tiny_values(vocab_size=300, context_length=32, tokenizer="gpt2-first-ranks", tie_embeddings=True),
    )
    common = [
        "--data",
        text,
        "--config",
        config,
        "--warmup-steps",
        2,
        "--batch-size",
        4,
        "--stride",
        8,
        "--json",
    ]
    common += ["--sample-every", 0, "--learning-rate", 0.01]

    def call(
        output: str, *options: object, validation: Path = text
    ) -> tuple[int, list[dict[str, object]], str]:
        capfd.readouterr()
        arguments = [*common, "--validation", validation, "--output", tmp_path / output, *options]
        status = boundary.run(app, PROGRAM, [str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return status, [json.loads(line) for line in out.splitlines()], err

    return call


def losses(records: list[dict[str, object]]) -> dict[object, object]:
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(train, monkeypatch, optimizer):
    options = ("--optimizer", optimizer, "--steps", 12, "--set", "drop_rate=0.1", "--accumulate", 2)
    options += ("--checkpoint-every", 5)
    status, whole, _ = train("whole", *options)
    assert status == 0
    assert losses(whole)[12] < losses(whole)[1]

    def die_after_step_10(folder, model, optimizers, settings, done, best) -> None:
        save_checkpoint(folder, model, optimizers, settings, done, best)
        if done == 10:
            raise RuntimeError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr("gptcli.train.run.save_checkpoint", die_after_step_10)
        status, before, err = train("cut", *options)
    assert status == 1
    assert "the power went" in err
    status, after, _ = train("cut", *options, "--resume")
    assert status == 0
    assert losses(before) | losses(after) == losses(whole)
    assert list(losses(after)) == [11, 12]


def test_an_interrupted_run_writes_a_checkpoint_and_resumes_to_the_same_losses(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    config = write_yaml(
        tmp_path / "c.yaml", tiny_values(vocab_size=300, context_length=32, tokenizer="gpt2-first-ranks")
    )
    base = [
        sys.executable,
        "-m",
        "gptcli.train",
        "--data",
        text,
        "--config",
        config,
        "--steps",
        "120",
        "--json",
    ]
    base += ["--batch-size", "4", "--stride", "8", "--optimizer", "muon", "--checkpoint-every", "0"]
    base += ["--sample-every", "0", "--output"]

    def records(output: bytes) -> dict[object, object]:
        return losses([json.loads(line) for line in output.splitlines()])

    whole = records(subprocess.check_output([*base, tmp_path / "whole"], cwd=ROOT, timeout=300))
    running = subprocess.Popen(
        [*base, tmp_path / "cut"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    first = b"".join(running.stdout.readline() for _ in range(5))
    running.send_signal(signal.SIGINT)
    rest, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"--resume continues from there" in err
    before = records(first + rest)
    assert 5 <= len(before) < 120
    command = [*base, tmp_path / "cut", "--resume"]
    after = records(subprocess.check_output(command, cwd=ROOT, timeout=300))
    assert before | after == whole
    assert not before.keys() & after.keys()
    same = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut")]
    assert same[0].keys() == same[1].keys()
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])


def test_a_terminal_that_closes_ends_the_run_with_a_checkpoint(train, monkeypatch):
    record = TrainingRun._record

    def hang_up(run, step):
        record(run, step)
        if step.number == 3:
            os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(TrainingRun, "_record", hang_up)
    status, out, err = train("model", "--steps", 6, "--checkpoint-every", 0)
    assert (status, list(losses(out))) == (129, [1, 2, 3])
    assert "stopped after step 3; --resume continues from there" in err
    assert list(losses(train("model", "--steps", 6, "--resume")[1])) == [4, 5, 6]


def test_the_saved_model_generates_and_loads_in_transformers(train, tmp_path, cli):
    status, records, err = train("model", "--steps", 30, "--save-dtype", "float16", "--evaluate-every", 10)
    assert status == 0
    assert "3,239 bytes" in err
    judged = [
        record["validation_nats_per_token"] for record in records if "validation_nats_per_token" in record
    ]
    assert len(judged) == 3
    assert judged[-1] < judged[0]
    folder = tmp_path / "model"
    result = cli("generate", "Once upon", "-w", folder, "-n", 8, "--json", "-q")
    record = json.loads(result.out)
    reference = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([record["prompt_ids"]])
    out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert out[0, ids.shape[1] :].tolist() == record["completion_ids"]


def test_training_starts_from_weights_and_leaves_their_file_alone(train, tmp_path):
    assert train("first", "--steps", 40)[0] == 0
    path = tmp_path / "first" / "model.safetensors"
    before = path.read_bytes()
    status, records, _ = train(
        "second", "--steps", 3, "--weights", tmp_path / "first", "--learning-rate", 1e-4
    )
    assert status == 0
    _, first, _ = train("again", "--steps", 1)
    assert losses(records)[1] < losses(first)[1] - 0.5
    assert path.read_bytes() == before
    assert (tmp_path / "second" / "model.safetensors").read_bytes() != before


def test_quiet_silences_every_note_and_that_of_the_hub_too(train, tmp_path, monkeypatch):
    assert train("first", "--steps", 1)[0] == 0
    monkeypatch.setattr("gptcli.weights.source.fetch", lambda *_, **__: tmp_path / "first")
    options = ("--steps", 1, "--weights", "hf:someone/tiny")
    status, _, err = train("loud", *options)
    assert status == 0
    assert "note: hf:someone/tiny: revision first" in err
    status, records, err = train("quiet", *options, "--quiet")
    assert (status, err) == (0, "")
    assert list(losses(records)) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-length", "33"], "the context length is 32"),
        (["--batch-size", "4000"], "a batch is 4000"),
        (["--resume"], "leave --resume out to begin"),
        (["--data", "none.txt"], "none.txt: cannot be read"),
        (["--steps", "0"], "--steps"),
        (["--set", "emb_dim=24000", "--set", "n_layers=500"], "not enough memory: weights, gradients"),
        (["--set", "n_layer=1"], "did you mean n_layers?"),
    ],
)
def test_a_wrong_request_gives_an_error_of_one_line(train, options, message):
    status, out, err = train("model", *options)
    assert status in (1, 2)
    assert out == []
    assert message in err
    assert "Traceback" not in err


def test_a_checkpoint_of_another_run_or_a_broken_one_is_refused(train, tmp_path):
    assert train("model", "--steps", 4)[0] == 0
    status, _, err = train("model", "--steps", 6, "--resume", "--set", "n_layers=1")
    assert status == 2
    assert "n_layers was 2 and is 1\n" in err
    status, _, err = train("model", "--steps", 4)
    assert status == 2
    assert "holds checkpoint.pt already; --resume continues it" in err
    more = tmp_path / "more.txt"
    more.write_text(TEXT)
    status, _, err = train("model", "--steps", 4, "--resume", "--data", more)
    assert "training tokens was 2100 and is 4200" in err
    path = tmp_path / "model" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:100])
    status, _, err = train("model", "--steps", 4, "--resume")
    assert status == 1
    assert "corrupt or incomplete" in err


def test_a_run_may_be_continued_for_more_steps_but_not_for_fewer(train):
    _, short, _ = train("model", "--steps", 4)
    status, longer, err = train("model", "--steps", 7, "--resume")
    assert status == 0
    assert list(losses(longer)) == [5, 6, 7]
    assert "planned for 4 steps: from step 5 on the learning rate follows the schedule of 7" in err
    factors = {r["step"]: r["rate_factor"] for r in short + longer if "rate_factor" in r}
    assert factors[5] == pytest.approx(TrainingSettings(steps=7, warmup_steps=2).rate_at(4), abs=1e-5)
    status, _, err = train("model", "--steps", 6, "--resume")
    assert (status, "--steps 6: the run has done 7 already" in err) == (2, True)


def test_everything_is_checked_before_the_first_step(train, tmp_path):
    (tmp_path / "short.txt").write_text("\n")
    status, out, err = train("model", validation=tmp_path / "short.txt")
    assert (status, out) == (2, [])
    assert "--validation: the text has fewer than two tokens" in err
    options = ("--sample-every", 1, "--sample-prompt", "Kathryn", "--set", "tokenizer=gpt2")
    status, out, err = train("model", *options)
    assert (status, out) == (2, [])
    assert "error: --sample-prompt: the token" in err


def test_a_sample_that_fails_is_a_note_after_the_checkpoint_of_its_step(train, tmp_path, monkeypatch):
    seen = []

    def broken(*_arguments):
        seen.append((tmp_path / "model" / "checkpoint.pt").exists())
        raise RuntimeError("no")

    monkeypatch.setattr("gptcli.train.run.decode", broken)
    status, out, err = train("model", "--steps", 2, "--sample-every", 1, "--checkpoint-every", 1)
    assert (status, list(losses(out)), seen) == (0, [1, 2], [True, True])
    assert err.count("no sample: no") == 2


def test_a_finished_run_leaves_a_model_even_if_no_validation_was_the_best(train, tmp_path, monkeypatch):
    nothing = Evaluation(float("nan"), float("nan"))
    monkeypatch.setattr("gptcli.train.run.evaluate", lambda *_arguments, **_options: nothing)
    assert train("model", "--steps", 2)[0] == 0
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_the_schedule_warms_up_and_falls_along_half_a_cosine():
    settings = TrainingSettings(steps=110, warmup_steps=10, final_fraction=0.1)
    assert [settings.rate_at(step) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert settings.rate_at(60) == pytest.approx(0.55)
    assert settings.rate_at(110) == pytest.approx(0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_vectors_do_not_decay_and_every_parameter_is_trained_once(optimizer):
    model = lively_model(tiny_config(tie_embeddings=True))
    optimizers = Optimizers(model, TrainingSettings(steps=1, optimizer=optimizer)).optimizers
    groups = [group for one in optimizers for group in one.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    for group in groups:
        assert all((p.ndim < 2) == (group["weight_decay"] == 0) for p in group["params"])


class TestEvaluation:
    @pytest.mark.parametrize("n", [2, 9, 16, 17, 50])
    @pytest.mark.parametrize("stride", [16, 5])
    def test_every_token_is_scored_once_in_its_window(self, n, stride):
        model = lively_model(tiny_config())
        ids = np.random.default_rng(0).integers(0, 97, n).astype("<u2")
        found = evaluate(model, ids, 1000, max_length=16, stride=stride, batch_size=3)
        losses, end = [], min(n - 1, 16)
        starts = dict.fromkeys(range(1, end + 1), 0)
        while end < n - 1:  # token by token, from the definition
            new = min(n - 1, end + stride)
            starts |= dict.fromkeys(range(end + 1, new + 1), new - 16)
            end = new
        for t in range(1, n):
            with torch.no_grad():
                logits = model(torch.from_numpy(ids[None, starts[t] : t].astype("int64")))[0, -1]
            losses.append(F.cross_entropy(logits, torch.tensor(int(ids[t]))).item())
        assert found.nats_per_token == pytest.approx(sum(losses) / (n - 1), abs=1e-5)
        assert found.bits_per_byte == pytest.approx(sum(losses) / math.log(2) / 1000, abs=1e-5)


class TestSave:
    @pytest.mark.parametrize("tied", [True, False])
    def test_gpt2s_shape_is_written_as_hugging_face_names_it(self, tmp_path, tied):
        model = lively_model(tiny_config(tie_embeddings=tied))
        assert save_model(model, tmp_path) is HUGGINGFACE
        modes = {path.stat().st_mode for path in tmp_path.iterdir()}
        assert len(modes) == 1  # others may read the weights as they may the config
        state, by_hand = load_file(tmp_path / "model.safetensors"), huggingface_state(model)
        assert state.keys() == by_hand.keys()  # a tied head once
        assert all(torch.equal(state[name], by_hand[name]) for name in state)
        reference = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
        ids = torch.tensor([[3, 1, 4, 1, 5]])
        torch.testing.assert_close(reference(ids).logits, model(ids), atol=1e-4, rtol=0)

    @pytest.mark.parametrize(
        "changes", [{"qkv_bias": False}, {"norm_unbiased": True}, {"ffn_bias": False}], ids=str
    )
    def test_another_shape_is_written_as_the_tutorial_names_it(self, tmp_path, changes):
        model = lively_model(tiny_config(**changes))
        assert save_model(model, tmp_path) is TUTORIAL
        plan = plan_load(tmp_path, [])
        loaded = load_weights(plan, device=torch.device("cpu"), dtype=torch.float32)
        ids = torch.tensor([[3, 1, 4, 1, 5]])
        assert torch.equal(loaded.model(ids), model(ids))
        assert loaded.config == model.config

    def test_a_table_read_backwards_names_every_parameter(self):
        model = lively_model(tiny_config())
        parameters = dict(model.named_parameters())
        for layout in (HUGGINGFACE, TUTORIAL):
            laid = lay_out(parameters, layout, model.config)
            assert sum(t.numel() for t in laid.values()) == sum(p.numel() for p in parameters.values())


def test_one_step_equals_transformers(tmp_path):
    model = lively_model(tiny_config(tie_embeddings=True, vocab_size=211)).train()
    save_model(model, tmp_path)
    reference = GPT2LMHeadModel.from_pretrained(tmp_path).eval()  # no dropout
    model.eval()
    ids = torch.randint(211, (4, 16))
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    theirs = reference(ids, labels=ids).loss
    torch.testing.assert_close(loss, theirs, atol=1e-5, rtol=0)
    loss.backward(), theirs.backward()
    grads = lay_out({n: p.grad for n, p in model.named_parameters()}, HUGGINGFACE, model.config)
    for name, parameter in reference.transformer.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, atol=1e-5, rtol=1e-4)
