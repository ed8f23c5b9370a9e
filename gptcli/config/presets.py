"""The sources of a config: a preset, a file, `--set` flags; and the origin of every value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from gptcli.config.choices import nearest
from gptcli.config.files import parse_yaml, read_config_file
from gptcli.config.huggingface import from_huggingface, is_huggingface
from gptcli.config.model_config import KEYS, ModelConfig, build_config
from gptcli.config.nanogpt import from_nanogpt, is_nanogpt
from gptcli.errors import ConfigError, UsageError

Origin = Literal["default", "preset", "tokenizer", "weights", "file", "flag"]

DEFAULT_PRESET = "gpt-124m"
ALIASES = {"gpt2": "gpt2-small", "gpt2-124m": "gpt2-small", "gpt2-355m": "gpt2-medium"} | {
    "gpt2-774m": "gpt2-large",
    "gpt2-1558m": "gpt2-xl",
}


@dataclass(frozen=True)
class ConfigSource:
    """The values of some config keys, and where they come from; `name` is for messages."""

    origin: Origin
    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid config with the origin of each value, and the name of its preset, if it has one."""

    config: ModelConfig
    origin: Mapping[str, Origin]
    preset: str | None = None


def presets_folder() -> Path:
    """Return the folder of presets: inside an installed package, or next to it in a source checkout."""
    package = Path(str(files("gptcli")))
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, by family and size."""
    order = {"small": 0, "medium": 1, "large": 2, "xl": 3}
    names = (path.stem for path in presets_folder().glob("*.yaml"))
    return tuple(
        sorted(names, key=lambda name: (name.partition("-")[0], order.get(name.split("-")[-1], 9), name))
    )


def preset_name(name: str) -> str:
    """Return the canonical name of a preset: case does not matter, and `gpt2` is `gpt2-small`.

    Raises `ConfigError` for an unknown name.
    """
    known = preset_names()
    wanted = name.strip().lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted not in known:
        hint = nearest(wanted, known)
        if not hint and Path(name).is_file():
            hint = " (to read that file: --config)"
        raise ConfigError(f"no preset {name!r}{hint}; there are: {', '.join(known)}")
    return wanted


def preset_source(name: str) -> ConfigSource:
    """Return the values of a preset; raises `ConfigError` for an unknown name."""
    name = preset_name(name)
    return ConfigSource("preset", name, read_config_file(presets_folder() / f"{name}.yaml"))


def shipped_weights(name: str) -> Path | None:
    """Return the file of weights that ships with a preset; None if there is none."""
    path = presets_folder() / f"{name}.safetensors"
    return path if path.is_file() else None


def file_source(path: Path, *, all_sizes: bool = True, theirs_if_unclear: bool = False) -> ConfigSource:
    """Return the values of a config file with our keys, nanoGPT's, or those of Hugging Face's GPT-2.

    Without `all_sizes`, the last may leave sizes out; see `from_huggingface`. `theirs_if_unclear` takes keys
    that both may have for Hugging Face's.
    """
    values = read_config_file(path)
    if is_nanogpt(values):
        values = from_nanogpt(values)
    elif is_huggingface(values, if_unclear=theirs_if_unclear):
        values = from_huggingface(values, str(path), all_sizes=all_sizes)
    return ConfigSource("file", str(path), values)


def flags_source(assignments: Iterable[str]) -> ConfigSource:
    """Return the values of `--set KEY=VALUE` options, typed as in YAML; the last value of a key wins."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise UsageError(f"--set {assignment!r}: expected KEY=VALUE, such as --set n_layers=6")
        if key not in KEYS:
            raise UsageError(f"--set {assignment!r}: unknown key {key!r}{nearest(key, KEYS)}")
        try:
            values[key] = parse_yaml(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--set {assignment!r}: {error}") from None
    return ConfigSource("flag", "--set", values)


def sources_from_options(
    preset: str | None, config: Path | None, assignments: Iterable[str]
) -> list[ConfigSource]:
    """Return the sources that the options name, weakest first.

    Raises `UsageError` for `--preset` with `--config`.
    """
    if preset is not None and config is not None:
        raise UsageError("--preset and --config both name a model; give one of them")
    sources = [flags_source(assignments)]
    if config is not None:
        sources.insert(0, file_source(config))
    elif preset is not None:
        sources.insert(0, preset_source(preset))
    return sources


def resolve(sources: Iterable[ConfigSource]) -> ResolvedConfig:
    """Merge sources, weakest first, into one valid config; raises `ConfigError` with all faults."""
    values: dict[str, Any] = {}
    origin: dict[str, Origin] = dict.fromkeys(KEYS, "default")
    names: list[str] = []
    preset = None
    for source in sources:
        values |= source.values
        origin |= dict.fromkeys(source.values, source.origin)
        preset = source.name if source.origin == "preset" else preset
        if source.name and source.values:
            names.append(source.name)
    config = build_config(values, " with ".join(names))
    return ResolvedConfig(config, {key: origin[key] for key in KEYS}, preset)


def default_sources(
    preset: str | None, config: Path | None, assignments: Iterable[str]
) -> list[ConfigSource]:
    """Return the sources that the options name, from `DEFAULT_PRESET` on without preset and config."""
    sources = sources_from_options(preset, config, assignments)
    if preset is None and config is None:
        sources.insert(0, preset_source(DEFAULT_PRESET))
    return sources


def resolve_options(preset: str | None, config: Path | None, assignments: Iterable[str]) -> ResolvedConfig:
    """Return the config that `--preset`, `--config` and `--set` describe.

    Without the first two it is that of `DEFAULT_PRESET`. Raises `UsageError` and `ConfigError`.
    """
    return resolve(default_sources(preset, config, assignments))
