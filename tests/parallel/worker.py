"""The process of the tests of tensor parallelism: it compares shards with the whole model and prints JSON.

torchrun --nproc-per-node N -m tests.parallel.worker CHECKPOINT…
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.decode.sampling import Sampling
from gptcli.decode.speculation import Speculator
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import NumericsError
from gptcli.model.gpt import GPTModel
from gptcli.parallel.join import join
from gptcli.runtime import LoadedModel, load
from gptcli.system.torchrun import read_torchrun
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.source import select_source
from tests.decoding import decode_ids, decode_tokens

PROMPTS = [[1, 2, 3, 1, 2, 3], [5], [7, 8, 9, 10, 11, 12, 13]]
N = 12  # past the context of 16


def batched(model: GPTModel) -> list[list[int]]:
    rows = [SequenceState(list(prompt), N) for prompt in PROMPTS]
    waiting = iter([rows])
    for _ in BatchDecoder(TorchEngine(model), len(rows)).decode(lambda _: next(waiting, [])):
        pass
    return [row.ids[len(prompt) :] for row, prompt in zip(rows, PROMPTS, strict=True)]


def texts(model: GPTModel, engine=None) -> Iterator[tuple[str, object]]:
    """Yield the result of every way to decode: cached or not, batched, speculative, sampled."""

    def greedy(**options) -> list[list[int]]:
        return [decode_ids(model, prompt, N, **options) for prompt in PROMPTS]

    yield "cached", greedy()
    yield "not cached", greedy(use_cache=False)
    yield "batched", batched(model)
    drafts = {"engine": engine, "speculator": Speculator(measures=False)} if engine else {}
    yield "speculative", [decode_ids(model, prompt, N, **drafts) for prompt in PROMPTS]
    yield "logprobs", [step.logprob for step in decode_tokens(model, PROMPTS[0], N, logprobs=True)]
    draw = Sampling(temperature=0.7, top_k=9).sampler(5, 0)
    yield "sampled", decode_ids(model, PROMPTS[1], N, draw)


def compare(path: Path, ready: LoadedModel) -> dict[str, object]:
    """Return the differences between the sharded model and the whole one."""
    whole = load_weights(plan_load(path, []), device=torch.device("cpu"), dtype=torch.float32).model
    ids = torch.tensor(PROMPTS[2:3])
    with torch.inference_mode():
        difference = float((ready.model(ids) - whole(ids)).abs().max())
    found: dict[str, object] = {"logits": difference}
    exact, expected = (engine.exact_logits(PROMPTS[2]) for engine in (ready.engine, TorchEngine(whole)))
    found["exact"] = float(abs(exact - expected).max())
    for (name, ours), (_, theirs) in zip(texts(ready.model, ready.engine), texts(whole), strict=True):
        if name == "logprobs":
            found[name] = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        else:
            found[name] = ours == theirs
    found["sums"] = count_reductions(ready)
    found["held"] = sum(p.numel() for p in ready.model.parameters())
    found["of"] = sum(p.numel() for p in whole.parameters())
    return found | {"broken": errors_of_all(ready)}


def count_reductions(ready: LoadedModel) -> int:
    """Return the number of all-reduces for one token."""
    group, before = ready.group, ready.group.all_reduce
    counted: list[None] = []
    group.all_reduce = lambda x: (counted.append(None), before(x))[1]
    with torch.inference_mode():
        ready.model.hidden(torch.tensor([[1]]))
    del group.all_reduce
    return len(counted)


def errors_of_all(ready: LoadedModel) -> list[str | None]:
    """Return the error of every process when one of them has a NaN in its shard of the head."""
    assert ready.group is not None
    if ready.group.ranks.rank == ready.group.ranks.world_size - 1:
        ready.model.out_head.shard.weight[-1, 0] = torch.nan
    error = None
    try:
        list(decode_tokens(ready.model, PROMPTS[0], 3))
    except NumericsError as raised:
        error = str(raised)
    return ready.group.all_gather_object(error)


def main() -> None:
    torchrun = read_torchrun()
    assert torchrun is not None
    group = join(torchrun, "cpu")
    for path in map(Path, sys.argv[1:]):
        ready = load(select_source(path), device="cpu", dtype="float32", seed=0, cache_tokens=16, group=group)
        found = compare(path, ready)
        if group.is_first:
            print(json.dumps({"path": path.name, **found}), flush=True)
    group.finish()


if __name__ == "__main__":
    main()
