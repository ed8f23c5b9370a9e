"""The model that was asked for: a weights file, a config alone, or the trained model that ships."""

from collections.abc import Sequence
from pathlib import Path

from gptcli.presets import ResolvedConfig, chosen_layers, preset_layer, resolve_options, shipped_weights
from gptcli.weights.plan import LoadPlan, plan_load

SHIPPED = "stories"


def choose_source(
    preset: str | None, config: Path | None, assignments: Sequence[str], weights: Path | None
) -> ResolvedConfig | LoadPlan:
    """A weights file and what it holds, or a config whose weights will be random.

    A preset whose weights ship takes those; so does the choice of nothing, which is `SHIPPED`.
    """
    layers = chosen_layers(preset, config, assignments)
    if weights is not None:
        return plan_load(weights, layers)
    if is_shipped_default(preset, config, weights):
        layers.insert(0, preset_layer(SHIPPED))
    named = next((layer.name for layer in layers if layer.origin == "preset"), None)
    shipped = shipped_weights(named) if named else None
    return plan_load(shipped, layers) if shipped else resolve_options(preset, config, assignments)


def is_shipped_default(preset: str | None, config: Path | None, weights: Path | None) -> bool:
    """Whether nothing was chosen, so that the model that ships is taken."""
    nothing = preset is None and config is None and weights is None
    return nothing and shipped_weights(SHIPPED) is not None


def shipped_note() -> str:
    """What a user who chose nothing should know."""
    return f"this is {SHIPPED}, the small model that ships with gptcli; --weights takes a GPT-2 of yours"
