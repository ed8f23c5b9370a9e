"""Which weights were asked for: a file or folder, a repository of the hub, or a preset's official ones."""

import sys
from pathlib import Path

from gptcli.cli.render import Notes
from gptcli.config.presets import preset_name
from gptcli.errors import UsageError
from gptcli.weights.hub import fetch, is_hub_name, official_weights


def asked_weights(weights: Path | None, pretrained: bool, preset: str | None) -> Path | None:
    """The weights by the name that the user gave, or that `--pretrained` stands for."""
    if not pretrained:
        return weights
    if weights is not None:
        raise UsageError("--pretrained and --weights are two answers to one question; give one of them")
    if preset is None:
        raise UsageError("--pretrained: of which preset? such as --preset gpt2-small --pretrained")
    return Path(official_weights(preset_name(preset)))


def local_weights(weights: Path | None, notes: Notes) -> Path | None:
    """The weights as a file or folder here; a repository's are fetched: the one use of the network."""
    if weights is None or not is_hub_name(weights):
        return weights
    folder = fetch(str(weights), show_progress=sys.stderr.isatty() and not notes.quiet)
    notes.note(f"{weights}: revision {folder.name[:12]}, in {folder}")
    return folder
