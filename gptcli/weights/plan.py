"""The plan for loading a weights file, made from its header alone: the model's config, the use of its head.

The file decides what its tensors show: sizes, biases, head. Its sidecar, the `config.json` in the same
folder, gives what they cannot show. A preset, a config or `--set` may repeat these values, not change them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gptcli.config.huggingface import within_vocabulary
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ConfigSource, ResolvedConfig, presets_folder, resolve
from gptcli.errors import ConfigError, WeightsError, count
from gptcli.weights.detect import DetectedLayout, detect_layout, shorten
from gptcli.weights.files import open_checkpoint
from gptcli.weights.header import Checkpoint
from gptcli.weights.infer import (
    PRESENCE_KEYS,
    SIZE_KEYS,
    assume_arithmetic,
    declared_by,
    fitting_preset,
    infer_from_tensors,
)
from gptcli.weights.infer_feed_forward import infer_feed_forward
from gptcli.weights.layouts import NANOGPT, TUTORIAL
from gptcli.weights.sidecar import check_sidecar, read_sidecar

# embedding     the head is the token embedding
# own           the file's head is used
# if different  ... unless its numbers are those of the embedding
# unused        config.json ties the head, so the file's own is not used
Head = Literal["embedding", "own", "if different", "unused"]

# A weights file has no drop rate, and only training needs one.
NO_DROPOUT = ConfigSource("default", "", {"drop_rate": 0.0})


@dataclass(frozen=True)
class LoadPlan:
    """A checkpoint, the config of its model, and the use of its head.

    `inferred` are the config keys that the tensors show.
    """

    detected: DetectedLayout
    inferred: Mapping[str, Any]
    resolved: ResolvedConfig
    head: Head
    head_is_embedding: bool  # the file has the one tied matrix under the head's name
    notes: tuple[str, ...] = field(default=())

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.resolved.config

    @property
    def preset(self) -> str | None:
        """The preset that was given with the file, or else the one that fits it."""
        return self.resolved.preset or self.fitting_preset

    @property
    def ships(self) -> bool:
        """True if these weights ship with gptcli, so that they need no notes."""
        return self.checkpoint.path.parent == presets_folder()

    @property
    def checkpoint(self) -> Checkpoint:
        """The tensors of the file."""
        return self.detected.checkpoint

    @property
    def fitting_preset(self) -> str | None:
        """The preset that describes this file."""
        return fitting_preset({**self.inferred, "tie_embeddings": self.config.tie_embeddings})


def plan_load(path: Path, sources: Sequence[ConfigSource]) -> LoadPlan:
    """Read the header of a weights file or folder and decide the model's config.

    `sources` are what the options name (preset or config, then `--set`). Raises `WeightsError` for a file
    that is unreadable, has no known layout, or contradicts them.
    """
    return plan_checkpoint(detect_layout(open_checkpoint(path)), sources)


def plan_checkpoint(
    detected: DetectedLayout, sources: Sequence[ConfigSource], sidecar: ConfigSource | None = None
) -> LoadPlan:
    """Make the plan of `plan_load` from a header that is already read.

    `sidecar` is the config that the checkpoint itself holds, in place of a `config.json` next to it.
    """
    inferred = infer_from_tensors(detected)
    if sidecar is None:
        sidecar = read_sidecar(detected)
    sidecar = replace(sidecar, values=within_vocabulary(dict(sidecar.values), inferred.get("vocab_size")))
    if detected.layout is NANOGPT:  # Hugging Face's keys promise biases that its models need not have
        kept = {key: value for key, value in sidecar.values.items() if key not in PRESENCE_KEYS}
        sidecar = replace(sidecar, values=kept)
    check_sidecar(sidecar, inferred)
    head, head_is_embedding = _infer_head(detected, sidecar)
    inferred["tie_embeddings"] = head in ("embedding", "unused")
    notes = []
    is_tie_declared = any(declared_by(source).get("tie_embeddings") for source in (sidecar, *sources))
    if detected.other_heads:
        notes.append(f"not used: {shorten(detected.other_heads)} (a head for another task)")
    if head_is_embedding:
        notes.append("the file has no token embedding of its own: its head serves as embedding too")
    elif head == "embedding" and not is_tie_declared:
        notes.append("the file has no head of its own: the token embedding serves as head")
    notes += _check_sources(detected, sources, inferred, sidecar)
    heads, heads_notes = _infer_n_heads(detected, sources, inferred, sidecar)
    feed_forward, feed_forward_notes = infer_feed_forward(detected, sources, sidecar)
    notes += heads_notes + feed_forward_notes
    assumed = assume_arithmetic(detected.layout, [sidecar, *sources])
    notes += [
        f"{detected.layout.title} layout: taking {key} {value}; --set {key}=… takes another"
        for key, value in assumed.values.items()
    ]
    presets = [source for source in sources if source.origin == "preset"]
    stronger = [source for source in sources if source.origin != "preset"]
    from_tensors = ConfigSource("weights", str(detected.checkpoint.path), inferred | heads | feed_forward)
    try:
        resolved = resolve([NO_DROPOUT, assumed, *presets, sidecar, *stronger, from_tensors])
    except ConfigError as error:
        raise WeightsError(str(error)) from None
    detected.check_count(resolved.config)
    return LoadPlan(detected, inferred, resolved, head, head_is_embedding, tuple(notes))


def _infer_head(detected: DetectedLayout, sidecar: ConfigSource) -> tuple[Head, bool]:
    """Return the use of the file's head, and whether the file has the embedding under the head's name."""
    present = detected.by_target
    if "out_head.scale" in present:  # rows of its own, even if they are those of a tied embedding
        return "own", False
    has_head, has_embedding = "out_head.weight" in present, "tok_emb.weight" in present
    tied = sidecar.values.get("tie_embeddings")  # None: not declared
    if has_head and not has_embedding and (tied or (tied is None and detected.layout is not TUTORIAL)):
        return "embedding", True
    if tied is True:
        return ("unused" if has_head else "embedding"), False
    if tied is False:
        return "own", False
    return ("if different" if has_head else "embedding"), False


def _check_sources(
    detected: DetectedLayout,
    sources: Sequence[ConfigSource],
    inferred: Mapping[str, Any],
    sidecar: ConfigSource,
) -> list[str]:
    """Raise `WeightsError` where a source contradicts the file; return notes on what the file overrides.

    Sizes must agree in every source. Biases and head must agree in `--set`; elsewhere the file's are used.
    """
    path = detected.checkpoint.path
    known = dict(inferred)
    if "n_heads" in sidecar.values:
        known["n_heads"] = sidecar.values["n_heads"]
    overridden: dict[str, list[str]] = {}
    for source in (sidecar, *sources):
        declared = declared_by(source)
        sizes = [key for key in (*SIZE_KEYS, "n_heads") if key in declared and key in known]
        if wrong := {key: (declared[key], known[key]) for key in sizes if declared[key] != known[key]}:
            raise WeightsError(_size_message(path, source, wrong, inferred))
        for key, thing in (PRESENCE_KEYS | {"tie_embeddings": "tied head"}).items():
            asked = declared.get(key)
            if asked is None or asked == inferred[key]:
                continue
            if source.origin == "flag":
                raise WeightsError(
                    f"--set {key}={str(asked).lower()} contradicts {path}, where {key} is"
                    f" {str(inferred[key]).lower()}; leave the option out, the file decides"
                )
            overridden.setdefault(source.name, []).append(thing if inferred[key] else f"no {thing}")
    return [
        f"{' and '.join(things)} {'come' if len(things) > 1 else 'comes'} from the weights file,"
        f" not from {name}"
        for name, things in overridden.items()
    ]


def _size_message(
    path: Path,
    source: ConfigSource,
    wrong: Mapping[str, tuple[Any, Any]],
    inferred: Mapping[str, Any],
) -> str:
    """Return the message for sizes (key → declared, in the file) that differ, with a way out."""
    held = ", ".join(f"{key} {value}" for key, (_, value) in wrong.items())
    asked = ", ".join(f"{key} {value}" for key, (value, _) in wrong.items())
    preset = fitting_preset(inferred)
    remedy = f"use --preset {preset}" if preset else "leave the option out: the file gives its sizes"
    if source.origin == "flag":
        fits = f" (it fits --preset {preset})" if preset else ""
        remedy = f"leave the option out{fits}, or name another model with --preset alone"
    return f"{path} holds a model of {held}, and {source.name} asks for {asked}; {remedy}"


def _infer_n_heads(
    detected: DetectedLayout,
    sources: Sequence[ConfigSource],
    inferred: Mapping[str, Any],
    sidecar: ConfigSource,
) -> tuple[dict[str, Any], list[str]]:
    """Return `n_heads` by GPT-2's width of 64, with a note; nothing where a source declares it.

    Tensors do not show the number of heads.
    """
    if "n_heads" in sidecar.values or any("n_heads" in source.values for source in sources):
        return {}, []
    emb_dim = inferred.get("emb_dim", 0)
    if emb_dim and emb_dim % 64 == 0:
        n_heads = emb_dim // 64
        note = f"no config.json next to the weights: taking {count(n_heads, 'head')} of width 64"
        return {"n_heads": n_heads}, [note]
    raise WeightsError(
        f"{detected.checkpoint.path}: tensors do not show the number of heads, and emb_dim {emb_dim} is"
        " not a multiple of 64; put config.json next to the weights, or give --set n_heads=N"
    )
