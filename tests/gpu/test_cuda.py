"""Decoding on an NVIDIA GPU gives what the CPU gives. Skipped where PyTorch finds no such GPU."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gptcli.api import GenerationOptions, LoadedModel, generate, generate_batch, load_model, stream_tokens
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.decode.loop import decode
from gptcli.decode.speculation import Speculator
from gptcli.engine.cuda_graphs import MIN_TOKENS_TO_RECORD, SIZES, WINDOW, CudaGraphEngine
from gptcli.errors import ResourceError
from tests.models import lively_model, save_tutorial, scripted_model, tiny_config
from tests.parallel.test_parallel import torchrun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch.cuda.is_available() is false"
    ),
]
CONTEXT = 2 * WINDOW
SIZES_OF_MODEL = {
    "vocab_size": 50257,
    "context_length": CONTEXT,
    "emb_dim": 64,
    "n_heads": 4,
    "tie_embeddings": False,
}
# Largest difference to the float32 logits of the CPU, relative to their largest magnitude. bfloat16 keeps 8
# bits, so one rounding is up to 0.4 %, and a pass through two blocks adds up a dozen of them.
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 0.03
NEW_TOKENS = 40
PROMPT = "Once upon a time there was a King"

Load = Callable[..., LoadedModel]


@pytest.fixture(scope="module")
def device() -> str:
    return "cuda:0"


@pytest.fixture
def load(device) -> Load:
    """Return a function that loads a model on the GPU, with the engine that is made for it."""

    def load(*arguments: object, **options) -> LoadedModel:
        model = load_model(*arguments, device=device, **options)
        assert isinstance(model.engine, CudaGraphEngine)
        return model

    return load


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tutorial(lively_model(tiny_config(**SIZES_OF_MODEL)), tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def on_cpu(folder) -> LoadedModel:
    return load_model(folder, device="cpu")


def cpu_ids(model: LoadedModel, prompt: str, n: int, **options) -> list[int]:
    """Return the ids that the CPU decodes without speculation."""
    return generate(model, prompt, max_new_tokens=n, speculation="off", ignore_eos=True, **options).ids


def stepwise_logits(model: LoadedModel, n_prompt: int, n_steps: int) -> Array:
    """Return the logits [n_steps + 1, V] after a prompt and after each of the tokens that follow it.

    The ids are drawn, not decoded, so that they are the same for every model.
    """
    draw = random.Random(0)
    ids = [draw.randrange(model.config.vocab_size) for _ in range(n_prompt + n_steps)]
    cache = model.engine.new_cache(1, n_prompt + n_steps + max(SIZES))
    steps = [ids[:n_prompt], *([token] for token in ids[n_prompt:])]
    requests = (ForwardRequest([new], cache, tokens_left=MIN_TOKENS_TO_RECORD) for new in steps)
    rows = [model.engine.forward(request).copy() for request in requests]
    return np.concatenate(rows)[:, 0]


def relative_error(ours: Array, reference: Array) -> float:
    assert ours.shape == reference.shape
    assert ours.dtype == np.float32
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


@pytest.mark.parametrize("n_words", [0, 1, 7, 60])
def test_recorded_steps_give_the_ids_of_the_cpu(n_words, load, folder, on_cpu):
    """The longest text crosses the first window of positions, after which another step is recorded."""
    model, draw = load(folder), random.Random(n_words)
    words = draw.choices(("the", "King", "said", "to", "his", "daughter", "and", "bear"), k=n_words)
    n = WINDOW if n_words == 60 else NEW_TOKENS
    ids = generate(model, " ".join(words), max_new_tokens=n, speculation="off", ignore_eos=True).ids
    assert ids == cpu_ids(on_cpu, " ".join(words), n)
    assert model.engine.describe() == "CUDA graphs"


@pytest.mark.parametrize("n_draft", [1, 3, 7])
def test_draft_tokens_leave_the_ids_as_they_are(n_draft, load, folder, on_cpu):
    model = load(folder)
    words = "the King and the King and the King and the"
    options = {"max_new_tokens": 150, "draft_tokens": n_draft, "ignore_eos": True}
    assert generate(model, words, speculation="lookup", **options).ids == cpu_ids(on_cpu, words, 150)


def test_accepted_draft_tokens_save_passes(load, tmp_path, monkeypatch):
    circle = {token: (token + 1) % 5 for token in range(5)}  # 0 1 2 3 4 0 1 2 …
    model = load(save_tutorial(scripted_model(circle, context_length=CONTEXT), tmp_path))
    lengths, forward = [], model.engine.forward
    monkeypatch.setattr(
        model.engine, "forward", lambda request: lengths.append(len(request.ids[0])) or forward(request)
    )
    tokens = list(decode(model.engine, [0, 1, 2, 3], 200, speculator=Speculator(measures=False)))
    assert [token.token_id for token in tokens] == [n % 5 for n in range(4, 204)]
    assert max(lengths) > 4
    assert len(lengths) < 100


def test_sampling_draws_the_text_of_the_cpu(load, folder, on_cpu):
    options = GenerationOptions(
        max_new_tokens=NEW_TOKENS, temperature=0.8, top_k=50, top_p=0.95, num_samples=3, seed=7
    )
    ours, theirs = (generate(model, PROMPT, options) for model in (load(folder), on_cpu))
    assert [c.text for c in ours.completions] == [c.text for c in theirs.completions]
    assert len({c.text for c in ours.completions}) == 3


def test_log_probabilities_are_those_of_the_cpu(load, folder, on_cpu):
    ours, theirs = (
        generate(model, PROMPT, max_new_tokens=NEW_TOKENS, logprobs=True).logprobs
        for model in (load(folder), on_cpu)
    )
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({}, FLOAT32_TOLERANCE), ({"dtype": "bfloat16"}, BFLOAT16_TOLERANCE)],
    ids=["float32", "bfloat16"],
)
def test_logits_are_within_the_tolerance_of_their_dtype(options, tolerance, load, folder, on_cpu):
    model = load(folder, **options)
    error = relative_error(stepwise_logits(model, 20, NEW_TOKENS), stepwise_logits(on_cpu, 20, NEW_TOKENS))
    assert error < tolerance
    assert error > tolerance / 1000 or not options  # bfloat16 was used
    assert model.engine.describe() == "CUDA graphs"


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", FLOAT32_TOLERANCE), ("bfloat16", BFLOAT16_TOLERANCE)]
)
def test_int8_weights_give_the_logits_of_int8_on_the_cpu(dtype, tolerance, load, folder, on_cpu):
    rounded = load_model(folder, device="cpu", quantize="int8")
    model = load(folder, quantize="int8", dtype=dtype)
    assert model.dtype == f"int8 with {dtype}"
    ours, theirs = (stepwise_logits(m, 20, NEW_TOKENS) for m in (model, rounded))
    assert relative_error(ours, theirs) < tolerance
    assert relative_error(theirs, stepwise_logits(on_cpu, 20, NEW_TOKENS)) > FLOAT32_TOLERANCE
    assert model.engine.describe() == "CUDA graphs"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_int8_rows_and_scales_are_those_of_the_cpu(dtype, load, folder):
    expected = load_model(
        folder, device="cpu", engine="torch", quantize="int8", dtype=dtype
    ).model.state_dict()
    for name, tensor in load(folder, quantize="int8", dtype=dtype).model.state_dict().items():
        assert torch.equal(tensor.cpu(), expected[name]), name


def test_past_the_context_the_window_slides_as_on_the_cpu(load, tmp_path):
    small = save_tutorial(lively_model(tiny_config(**SIZES_OF_MODEL | {"context_length": 24})), tmp_path)
    ours, theirs = (cpu_ids(m, PROMPT, 60) for m in (load(small), load_model(small, device="cpu")))
    assert ours == theirs
    assert len(ours) == 60


def test_a_batch_gives_what_each_prompt_gets_by_itself(load, folder, on_cpu):
    model = load(folder)
    prompts = [PROMPT[: 3 * n] for n in range(1, 12)]
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "speculation": "off"}
    results = list(generate_batch(model, prompts, batch_size=4, **options))
    assert [result.record.index for result in results] == list(range(len(prompts)))
    assert [result.output.ids for result in results] == [
        generate(model, prompt, **options).ids for prompt in prompts
    ]
    assert results[5].output.ids == cpu_ids(on_cpu, prompts[5], NEW_TOKENS)


def test_two_requests_that_take_turns_do_not_disturb_each_other(load, folder, on_cpu):
    model = load(folder)
    prompts = [PROMPT, PROMPT[:9]]
    streams = [stream_tokens(model, prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True) for prompt in prompts]
    turns = [[token.token_id for token in pair] for pair in zip(*streams, strict=True)]
    expected = [cpu_ids(on_cpu, prompt, NEW_TOKENS) for prompt in prompts]
    assert [list(ids) for ids in zip(*turns, strict=True)] == expected


def test_a_mixture_is_decoded_by_pytorch_and_it_is_said(load, tmp_path):
    config = tiny_config(**SIZES_OF_MODEL, feed_forward="moe", n_experts=4)
    path = save_tutorial(lively_model(config), tmp_path)
    model = load(path)
    assert cpu_ids(model, PROMPT, NEW_TOKENS) == cpu_ids(load_model(path, device="cpu"), PROMPT, NEW_TOKENS)
    assert model.engine.describe().startswith("PyTorch (")
    assert "mixture" in model.engine.describe()


def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(load):
    def allocated() -> int:
        return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0

    before = allocated()
    with pytest.raises(ResourceError, match=r"not enough memory: bfloat16 weights .* need [\d,]+ bytes"):
        load(preset="gpt3-175b", dtype="bfloat16")
    assert allocated() == before


def test_one_process_of_torchrun_decodes_by_nccl(device, folder, on_cpu):
    kind = device.partition(":")[0]  # under torchrun every process takes its own GPU
    run = torchrun(
        1, "generate", PROMPT, "-w", folder, "--device", kind, "-n", NEW_TOKENS, "--json", "--ignore-eos"
    )
    out, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    record = json.loads(out)
    assert record["completion_ids"] == cpu_ids(on_cpu, PROMPT, NEW_TOKENS)
    assert {"cuda": "nccl", "cpu": "gloo"}[kind] in record["device"]["engine"]
