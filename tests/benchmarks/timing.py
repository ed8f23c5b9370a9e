"""Interleaved rounds: every contender once a round, the first round dropped, medians of the rest."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of what each contender returns (a rate, or seconds); one more round comes first, as warm-up."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            value = run()
            if number:
                seen[name].append(value)
    return {name: statistics.median(values) for name, values in seen.items()}


def read_gigabytes_per_second(n_bytes: int = 1 << 29) -> float:
    """Bandwidth of a sum over float32 that is far larger than any cache, GB/s."""
    data = torch.ones(n_bytes // 4)
    start = time.perf_counter()
    data.sum()
    return n_bytes / (time.perf_counter() - start) / 1e9
