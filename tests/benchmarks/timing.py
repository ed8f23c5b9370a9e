"""Interleaved rounds: every contender once per round, medians without the first round."""

import statistics
from collections.abc import Callable, Mapping


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what each contender returns, a rate or seconds, after a round of warm-up."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            value = run()
            if number:
                seen[name].append(value)
    return {name: statistics.median(values) for name, values in seen.items()}
