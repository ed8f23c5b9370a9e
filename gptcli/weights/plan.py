"""How a weights file becomes a model, decided from its header alone: the config, and every tensor's way.

The file decides what it holds: sizes, biases, head. `config.json` beside it gives what tensors cannot show.
A preset, a config or `--set` may say the same, never otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import Layer, ResolvedConfig, file_layer, presets_folder, resolve
from gptcli.errors import ConfigError, WeightsError
from gptcli.weights.detect import Recognised, recognise
from gptcli.weights.files import open_checkpoint
from gptcli.weights.header import Checkpoint
from gptcli.weights.infer import PRESENCE_KEYS, SIZE_KEYS, facts_of, fitting_preset, said_by
from gptcli.weights.infer_feed_forward import settle_feed_forward

# embedding     the head is the token embedding
# own           the file's head is used
# if different  ... unless its numbers are those of the embedding
# unused        config.json ties the head, so the file's own is not used
Head = Literal["embedding", "own", "if different", "unused"]

# Weights keep no drop rate, and only training asks for one.
NO_DROPOUT = Layer("default", "", {"drop_rate": 0.0})


@dataclass(frozen=True)
class LoadPlan:
    """A checkpoint, the config that it was settled to have, and what becomes of its head."""

    recognised: Recognised
    facts: Mapping[str, Any]
    resolved: ResolvedConfig
    head: Head
    head_is_embedding: bool  # the file saved the one tied matrix under the head's name
    notes: tuple[str, ...] = field(default=())

    @property
    def config(self) -> ModelConfig:
        return self.resolved.config

    @property
    def preset(self) -> str | None:
        """The preset that was asked for beside the file, or that fits it."""
        return self.resolved.preset or self.fitting_preset

    @property
    def ships(self) -> bool:
        """Whether these are weights of ours, of which nothing needs saying."""
        return self.checkpoint.path.parent == presets_folder()

    @property
    def checkpoint(self) -> Checkpoint:
        return self.recognised.checkpoint

    @property
    def fitting_preset(self) -> str | None:
        """The preset that describes this file."""
        return fitting_preset({**self.facts, "tie_embeddings": self.config.tie_embeddings})


def plan_load(path: Path, layers: Sequence[Layer]) -> LoadPlan:
    """Read the header of a weights file or folder and settle the model's config.

    `layers` are what the options name (preset or config, then `--set`). Raises `WeightsError` for a file that
    is unreadable, of no known layout, or at odds with them.
    """
    return plan_checkpoint(recognise(open_checkpoint(path)), layers)


def plan_checkpoint(recognised: Recognised, layers: Sequence[Layer]) -> LoadPlan:
    """`plan_load` for a header that is already read."""
    facts = facts_of(recognised)
    beside = _config_beside(recognised.checkpoint)
    _check_config_beside(beside, facts)
    head, head_is_embedding = _decide_head(recognised, beside)
    facts["tie_embeddings"] = head in ("embedding", "unused")
    notes = []
    if head_is_embedding:
        notes.append("the file has no token embedding of its own: its head serves as embedding too")
    elif head == "embedding" and not any(said_by(layer).get("tie_embeddings") for layer in (beside, *layers)):
        notes.append("the file has no head of its own: the token embedding serves as head")
    notes += _check_layers(recognised, layers, facts, beside)
    heads, more_notes = _n_heads(recognised, layers, facts, beside)
    feed_forward, still_more = settle_feed_forward(recognised, layers, beside)
    notes += more_notes + still_more
    presets = [layer for layer in layers if layer.origin == "preset"]
    stronger = [layer for layer in layers if layer.origin != "preset"]
    told = Layer("weights", str(recognised.checkpoint.path), facts | heads | feed_forward)
    try:
        resolved = resolve([NO_DROPOUT, *presets, beside, *stronger, told])
    except ConfigError as error:
        raise WeightsError(str(error)) from None
    return LoadPlan(recognised, facts, resolved, head, head_is_embedding, tuple(notes))


def _config_beside(checkpoint: Checkpoint) -> Layer:
    """`config.json` beside the weights, as a layer; an empty one when there is none."""
    path = checkpoint.config_path
    if path is None:
        return Layer("weights", "", {})
    try:
        return replace(file_layer(path), origin="weights")
    except ConfigError as error:  # a fault of the weights' folder, not of the command line
        raise WeightsError(str(error)) from None


def _check_config_beside(beside: Layer, facts: Mapping[str, Any]) -> None:
    said = beside.values
    wrong = [key for key in SIZE_KEYS if key in said and key in facts and said[key] != facts[key]]
    # What the file has too much is used, and noted; what it lacks is never made up or left out.
    wrong += [key for key in PRESENCE_KEYS if said.get(key) is True and not facts[key]]
    if wrong:
        claimed = ", ".join(f"{key} {said[key]}" for key in wrong)
        held = ", ".join(f"{key} {facts[key]}" for key in wrong)
        preset = fitting_preset(facts)
        fits = f" (they are those of {preset})" if preset else ""
        raise WeightsError(f"{beside.name} says {claimed}, and the tensors beside it have {held}{fits}")


def _decide_head(recognised: Recognised, beside: Layer) -> tuple[Head, bool]:
    present = recognised.by_target
    has_head, has_embedding = "out_head.weight" in present, "tok_emb.weight" in present
    tied = beside.values.get("tie_embeddings")  # None: nobody says
    if (
        has_head
        and not has_embedding
        and (tied or (tied is None and recognised.layout.name == "huggingface"))
    ):
        return "embedding", True
    if tied is True:
        return ("unused" if has_head else "embedding"), False
    if tied is False:
        return "own", False
    return ("if different" if has_head else "embedding"), False


def _check_layers(
    recognised: Recognised, layers: Sequence[Layer], facts: Mapping[str, Any], beside: Layer
) -> list[str]:
    """Sizes must agree with every layer; biases and head with `--set`, and elsewhere the file's are noted."""
    path = recognised.checkpoint.path
    known = dict(facts)
    if "n_heads" in beside.values:
        known["n_heads"] = beside.values["n_heads"]
    from_file: dict[str, list[str]] = {}
    for layer in (beside, *layers):
        said = said_by(layer)
        sizes = [key for key in (*SIZE_KEYS, "n_heads") if key in said and key in known]
        if wrong := {key: (said[key], known[key]) for key in sizes if said[key] != known[key]}:
            raise WeightsError(_clash(path, layer, wrong, facts))
        for key, thing in (PRESENCE_KEYS | {"tie_embeddings": "tied head"}).items():
            asked = said.get(key)
            if asked is None or asked == facts[key]:
                continue
            if layer.origin == "flag":
                raise WeightsError(
                    f"--set {key}={str(asked).lower()} contradicts {path}, where {key} is"
                    f" {str(facts[key]).lower()}; leave the option out, the file decides"
                )
            from_file.setdefault(layer.name, []).append(thing if facts[key] else f"no {thing}")
    return [
        f"{' and '.join(things)} {'come' if len(things) > 1 else 'comes'} from the weights file,"
        f" not from {name}"
        for name, things in from_file.items()
    ]


def _clash(path: Path, layer: Layer, wrong: Mapping[str, tuple[Any, Any]], facts: Mapping[str, Any]) -> str:
    held = ", ".join(f"{key} {value}" for key, (_, value) in wrong.items())
    asked = ", ".join(f"{key} {value}" for key, (value, _) in wrong.items())
    preset = fitting_preset(facts)
    remedy = f"use --preset {preset}" if preset else "leave the option out: the file gives its sizes"
    if layer.origin == "flag":
        fits = f" (it fits --preset {preset})" if preset else ""
        remedy = f"leave the option out{fits}, or name another model with --preset alone"
    return f"{path} holds a model of {held}, and {layer.name} asks for {asked}; {remedy}"


def _n_heads(
    recognised: Recognised, layers: Sequence[Layer], facts: Mapping[str, Any], beside: Layer
) -> tuple[dict[str, Any], list[str]]:
    """Heads leave no trace in the tensors: `config.json`, then an option, then GPT-2's width of 64."""
    if "n_heads" in beside.values or any("n_heads" in layer.values for layer in layers):
        return {}, []
    emb_dim = facts.get("emb_dim", 0)
    if emb_dim and emb_dim % 64 == 0:
        heads = emb_dim // 64
        return {"n_heads": heads}, [f"no config.json beside the weights: taking {heads} heads of width 64"]
    raise WeightsError(
        f"{recognised.checkpoint.path}: tensors do not show the number of heads, and emb_dim {emb_dim} is"
        " not a multiple of 64; put config.json beside the file, or give --set n_heads=N"
    )
