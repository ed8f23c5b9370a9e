"""Which feed-forward a file holds: its family is seen in the names, its gate's activation is not."""

from collections.abc import Sequence
from typing import Any

from gptcli.config.choices import GATES
from gptcli.config.presets import Layer
from gptcli.errors import WeightsError
from gptcli.weights.detect import Recognised
from gptcli.weights.infer import feed_forward_family, said_by


def settle_feed_forward(
    recognised: Recognised, layers: Sequence[Layer], beside: Layer
) -> tuple[dict[str, Any], list[str]]:
    """Config keys for the feed-forward where nobody says them, and notes on what was assumed.

    Raises `WeightsError` when a preset, config or option asks for another family than the file's, and for a
    mixture of experts of which nobody says how many experts a token takes.
    """
    is_moe, is_gated = feed_forward_family(recognised)
    path = recognised.checkpoint.path
    said: dict[str, Any] = {}
    for layer in (beside, *layers):
        words = said_by(layer)
        said |= words
        kind = words.get("feed_forward")
        if kind is None:
            continue
        gate = words.get("expert_feed_forward", "swiglu") if kind == "moe" else kind
        if (kind == "moe", gate in GATES) != (is_moe, is_gated):
            held = ("a mixture of " if is_moe else "") + ("gated" if is_gated else "plain two-layer")
            raise WeightsError(
                f"{path} holds {held} feed-forwards, and {layer.name} says feed_forward {kind}"
            )
    if "feed_forward" in said or not (is_moe or is_gated):
        return {}, []
    if not is_moe:
        return {"feed_forward": "swiglu"}, [
            "the feed-forward is gated, by SiLU as in SwiGLU unless --set feed_forward=… says otherwise"
        ]
    if "n_experts_per_token" not in said:
        raise WeightsError(
            f"{path}: tensors do not show how many experts a token takes; put config.json beside the file, or"
            " give --set n_experts_per_token=K"
        )
    return {"feed_forward": "moe", "expert_feed_forward": "swiglu" if is_gated else "mlp"}, []
