"""Tensor parallelism on this machine: memory and speed of one model over 1 and 2 processes.

    python -m tests.benchmarks.parallel [CHECKPOINT]     (default: GPT-2 small, random weights)

Every process has one thread, so two of them use two cores. Peak memory is that of a process above
its own after it has imported all that it needs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from gptcli.config.presets import resolve_options
from tests.models import peak_bytes

NEW_TOKENS = 40


def worker(path: Path) -> None:
    """Load the shard of this process, decode, and print the figures."""
    from gptcli.parallel.join import join
    from gptcli.parallel.load import load_shard  # noqa: F401 - so that it does not count
    from gptcli.runtime import load
    from gptcli.system.torchrun import read_torchrun
    from gptcli.weights.source import select_source
    from tests.decoding import decode_tokens

    torchrun = read_torchrun()
    group = join(torchrun, "cpu") if torchrun else None
    before = peak_bytes()
    source = select_source(path)
    model = load(source, device="cpu", cache_tokens=64, group=group)
    loaded = peak_bytes()
    seconds = []
    for _ in decode_tokens(model.model, [15496, 11, 314, 716], NEW_TOKENS):
        seconds.append(time.perf_counter())
    steps = sorted(b - a for a, b in pairwise(seconds))
    facts = {
        "file_bytes": source.plan.checkpoint.n_bytes,
        "peak_bytes_loaded": loaded - before,
        "peak_bytes_decoded": peak_bytes() - before,
        "tokens_per_second": 1 / steps[len(steps) // 2],
    }
    everyones = group.all_gather_object(facts) if group else [facts]
    if group is None or group.is_first:
        print(json.dumps({"processes": len(everyones), "each": everyones}))
    if group:
        group.finish()


def random_checkpoint(folder: Path) -> Path:
    from gptcli.model.init import random_model
    from tests.models import save_huggingface

    return save_huggingface(random_model(resolve_options("gpt2-small", None, []).config, 0), folder)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--worker"]:
        return worker(Path(arguments[1]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments[0]) if arguments else random_checkpoint(Path(folder))
        mine = ["-m", "tests.benchmarks.parallel", "--worker", str(path)]
        many = ["-m", "torch.distributed.run", "--standalone"]
        for start in ([], [*many, "--nproc-per-node=1"], [*many, "--nproc-per-node=2"]):
            done = subprocess.run(
                [sys.executable, *start, *mine],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            facts = json.loads(done.stdout)
            for rank, one in enumerate(facts["each"]):
                share = one["peak_bytes_loaded"] / one["file_bytes"]
                decoded = one["peak_bytes_decoded"] / one["file_bytes"]
                print(
                    f"{facts['processes'] if start else 'no'} process{'es' if start else ', no torchrun'},"
                    f" number {rank}: {share:.2f} of the file's bytes when loaded, {decoded:.2f} at most,"
                    f" {one['tokens_per_second']:.1f} tokens/s"
                )
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
