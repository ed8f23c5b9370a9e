"""The feed-forward of a file: tensor names show its family, but not the activation of its gate."""

from collections.abc import Sequence
from typing import Any

from gptcli.config.choices import GATES
from gptcli.config.presets import ConfigSource
from gptcli.errors import WeightsError
from gptcli.weights.detect import DetectedLayout
from gptcli.weights.infer import declared_by, infer_feed_forward_family


def infer_feed_forward(
    detected: DetectedLayout, sources: Sequence[ConfigSource], sidecar: ConfigSource
) -> tuple[dict[str, Any], list[str]]:
    """Return the feed-forward's config keys that no source declares, and notes on what was assumed.

    Raises `WeightsError` when a source declares another family than the file's, and for a mixture of experts
    when no source declares how many experts a token takes.
    """
    is_moe, is_gated = infer_feed_forward_family(detected)
    path = detected.checkpoint.path
    declared: dict[str, Any] = {}
    for source in (sidecar, *sources):
        values = declared_by(source)
        declared |= values
        kind = values.get("feed_forward")
        if kind is None:
            continue
        gate = values.get("expert_feed_forward", "swiglu") if kind == "moe" else kind
        if (kind == "moe", gate in GATES) != (is_moe, is_gated):
            held = ("a mixture of " if is_moe else "") + ("gated" if is_gated else "plain two-layer")
            raise WeightsError(
                f"{path} holds {held} feed-forwards, and {source.name} says feed_forward {kind}"
            )
    if "feed_forward" in declared or not (is_moe or is_gated):
        return {}, []
    if not is_moe:
        return {"feed_forward": "swiglu"}, [
            "the feed-forward is gated, by SiLU as in SwiGLU unless --set feed_forward=… says otherwise"
        ]
    if "n_experts_per_token" not in declared:
        raise WeightsError(
            f"{path}: tensors do not show how many experts a token takes; put config.json next to the"
            " weights, or give --set n_experts_per_token=K"
        )
    return {"feed_forward": "moe", "expert_feed_forward": "swiglu" if is_gated else "mlp"}, []
