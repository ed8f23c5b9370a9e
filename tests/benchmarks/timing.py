"""Interleaved rounds: every contender once a round, the first round dropped, medians of the rest."""

import statistics
from collections.abc import Callable, Mapping


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of what each contender returns (a rate, or seconds); one more round comes first, as warm-up."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            value = run()
            if number:
                seen[name].append(value)
    return {name: statistics.median(values) for name, values in seen.items()}
