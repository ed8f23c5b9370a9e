"""The model that was asked for: a weights file, a config alone, or the trained model that ships."""

from collections.abc import Sequence
from pathlib import Path

from gptcli.config.presets import (
    ResolvedConfig,
    preset_source,
    resolve,
    shipped_weights,
    sources_from_options,
)
from gptcli.weights.plan import LoadPlan, plan_load

SHIPPED = "stories"


def choose_source(
    preset: str | None, config: Path | None, assignments: Sequence[str], weights: Path | None
) -> ResolvedConfig | LoadPlan:
    """A weights file and what it holds, or a config whose weights will be random.

    A preset whose weights ship takes those; so does the choice of nothing, which is `SHIPPED`.
    """
    layers = sources_from_options(preset, config, assignments)
    if weights is not None:
        return plan_load(weights, layers)
    if preset is None and config is None:
        layers.insert(0, preset_source(SHIPPED))
    named = next((layer.name for layer in layers if layer.origin == "preset"), None)
    shipped = shipped_weights(named) if named else None
    return plan_load(shipped, layers) if shipped else resolve(layers)


def default_note(preset: str | None, config: Path | None, weights: Path | None) -> str | None:
    """What a user who chose nothing should know."""
    if preset is not None or config is not None or weights is not None:
        return None
    return f"this is {SHIPPED}, the small model that ships with gptcli; --weights takes a GPT-2 of yours"
