"""The model to load, as one value: a weights file, a hub repository, a preset or a config."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import (
    ConfigSource,
    Origin,
    ResolvedConfig,
    default_sources,
    preset_name,
    preset_source,
    resolve,
    shipped_weights,
    sources_from_options,
)
from gptcli.errors import UsageError
from gptcli.weights.hub import fetch
from gptcli.weights.hub_names import is_hub_name, official_weights
from gptcli.weights.plan import LoadPlan, plan_load
from gptcli.weights.tokenizer_source import TokenizerSource, folder_tokenizer, named_tokenizer, size_notes

if TYPE_CHECKING:  # it imports tiktoken
    from gptcli.tokenizer import Tokenizer

DEFAULT_MODEL = "stories"  # the trained model that ships


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded: its config and its checkpoint, or none for random weights.

    `weights` is what the user gave as weights; `notes` tell the user what was chosen. `tokenizer_source` is
    None for GPT-2's own tokenizer without files.
    """

    resolved: ResolvedConfig
    plan: LoadPlan | None = None
    weights: str | None = None
    notes: tuple[str, ...] = ()
    tokenizer_source: TokenizerSource | None = None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer."""
        from gptcli.tokenizer import Tokenizer

        source = self.tokenizer_source
        return Tokenizer(self.config, None if source is None else source.encoding)

    @property
    def tokenizer_fingerprint(self) -> str:
        """A short text that tells one tokenizer from another."""
        source = self.tokenizer_source
        return self.config.tokenizer if source is None else source.fingerprint

    @property
    def config(self) -> ModelConfig:
        """Return the model's config."""
        return self.resolved.config

    @property
    def origin(self) -> Mapping[str, Origin]:
        """Return the origin of each value of the config."""
        return self.resolved.origin

    @property
    def preset(self) -> str | None:
        """Return the preset that was named, or the one that fits the checkpoint."""
        return self.resolved.preset if self.plan is None else self.plan.preset


def select_source(
    weights: str | Path | None = None,
    *,
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
    pretrained: bool = False,
    tokenizer: str | Path | None = None,
    use_shipped: bool = True,
    show_progress: bool = False,
) -> ModelSource:
    """Return the model that these options name. Only a hub repository needs the network: it is fetched.

    Without weights a preset gets those that ship with it, if any, and the default preset is `DEFAULT_MODEL`;
    without `use_shipped` the weights are random, and the default preset is that of `default_sources`.
    `pretrained` means the official weights of the preset. `overrides` are `KEY=VALUE`. `tokenizer` is a file
    or folder, by default that of the weights. Random weights get its vocabulary, unless a config says
    otherwise. Raises the errors of `gptcli.errors`.
    """
    own = None if tokenizer is None else named_tokenizer(tokenizer)
    named = named_weights(weights, pretrained=pretrained, preset=preset)
    sources = sources_from_options(preset, config, overrides)
    if named is not None:
        path, notes = local_weights(named, show_progress=show_progress)
        return _from_checkpoint(path, sources, str(named), notes, own)
    if not use_shipped:
        return _random(default_sources(preset, config, overrides), [], own)
    notes = []
    if preset is None and config is None:
        sources.insert(0, preset_source(DEFAULT_MODEL))
        notes = [
            f"this is {DEFAULT_MODEL}, the small model that ships with gptcli;"
            " --weights takes a GPT-2 of yours"
        ]
    preset = next((layer.name for layer in sources if layer.origin == "preset"), None)
    shipped = shipped_weights(preset) if preset else None
    if shipped is None:
        return _random(sources, notes, own)
    return _from_checkpoint(shipped, sources, None, notes, own)


def named_weights(weights: str | Path | None, *, pretrained: bool, preset: str | None) -> Path | None:
    """Return the weights that the options name, which for `pretrained` are a repository, `hf:…`.

    Raises `UsageError` for options that contradict each other.
    """
    if not pretrained:
        return None if weights is None else _expand(weights)
    if weights is not None:
        raise UsageError("--pretrained and --weights both name weights; give one of them")
    if preset is None:
        raise UsageError("--pretrained needs a preset, such as --preset gpt2-small --pretrained")
    return Path(official_weights(preset_name(preset)))


def local_weights(
    weights: Path, *, show_progress: bool = False, pickles: bool = False
) -> tuple[Path, list[str]]:
    """Return the file or folder of these weights, and notes; a hub repository is fetched first.

    With `pickles` a repository without safetensors gives its pickles, which only a conversion reads.
    """
    if not is_hub_name(weights):
        return weights, []
    notes: list[str] = []
    path = fetch(str(weights), show_progress=show_progress, notes=notes, pickles=pickles)
    snapshot = next((folder for folder in (path, *path.parents) if folder.parent.name == "snapshots"), path)
    return path, [f"{weights}: revision {snapshot.name[:12]}, in {snapshot}", *notes]


def _expand(weights: str | Path) -> Path:
    """Return the path of weights, with the home folder for `~`; raise `UsageError` for an empty text."""
    if not str(weights):
        raise UsageError("weights: expected a file, a folder or hf:owner/name, got an empty text")
    try:
        return Path(weights).expanduser()
    except RuntimeError:  # a user who does not exist; there may be such a file
        return Path(weights)


def _from_checkpoint(
    path: Path,
    sources: list[ConfigSource],
    weights: str | None,
    notes: list[str],
    tokenizer: TokenizerSource | None,
) -> ModelSource:
    plan = plan_load(path, sources)
    if tokenizer is None and not plan.ships:
        tokenizer = folder_tokenizer(plan.checkpoint.folder)
    if not (tokenizer is None and plan.ships):
        notes = [*notes, *size_notes(tokenizer, plan.config)]
    return ModelSource(plan.resolved, plan, weights, tuple(notes), tokenizer)


def _random(sources: list[ConfigSource], notes: list[str], tokenizer: TokenizerSource | None) -> ModelSource:
    """Return a model without weights; a tokenizer's vocabulary is stronger than a preset's."""
    if tokenizer is not None:
        n_presets = sum(source.origin == "preset" for source in sources)
        sources = [*sources[:n_presets], tokenizer.config_source, *sources[n_presets:]]
    resolved = resolve(sources)
    if tokenizer is not None:
        notes = [*notes, *size_notes(tokenizer, resolved.config)]
    return ModelSource(resolved, notes=tuple(notes), tokenizer_source=tokenizer)
