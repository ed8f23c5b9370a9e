"""Config files: a strict reader of YAML and JSON that gives plain keys and values."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gptcli.errors import ConfigError

# A config is a dozen scalars; a larger file is not one.
MAX_CONFIG_BYTES = 1 << 18

# `git clone` without Git LFS leaves this text in place of a large file. Source: the Git LFS specification.
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"


def read_config_file(path: Path) -> dict[str, Any]:
    """Read the keys and values of a `.json`, `.yaml` or `.yml` file; the text of any other tells its format.

    Raises `ConfigError` for a file that is missing, too large, not UTF-8, or not one mapping.
    """
    text = _read_text(path)
    is_json = path.suffix.lower() == ".json" or (
        path.suffix.lower() not in (".yaml", ".yml") and text.lstrip().startswith("{")
    )
    parse = parse_json if is_json else parse_yaml
    try:
        values = parse(text)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply for a config") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path}: expected a mapping such as 'emb_dim: 768', got {_kind(values)}")
    return values


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: more than {MAX_CONFIG_BYTES} bytes; a config is a dozen keys")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None


def parse_json(text: str) -> Any:
    """Parse JSON; raise `ValueError` for a duplicate key, NaN or Infinity as well."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse, parse_int=parse_int, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None


def parse_yaml(text: str) -> Any:
    """Parse YAML's safe subset, `1e-5` a number; raise `ValueError` for an alias or duplicate key too."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"not YAML: {error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None
    except (
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # !!int before a word
        raise ValueError(f"not YAML: a value that its tag does not fit ({error})") from None


def _loader() -> Any:
    """Return a stricter subclass of PyYAML's SafeLoader; made on first use, so that JSON needs no YAML."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]  # not in the stubs
                raise yaml.MarkedYAMLError(
                    problem="aliases are not allowed in a config", problem_mark=event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - SafeLoader's
            pairs = [
                (self.construct_object(k, deep=True), self.construct_object(v, deep=True))
                for k, v in node.value
            ]
            return unique_keys(pairs)

        def construct_yaml_int(self, node: Any) -> int:
            _check_digits(str(node.value))
            return int(super().construct_yaml_int(node))

    StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)
    # YAML 1.1 wants a dot in a float; people, YAML 1.2 and JSON do not.
    StrictLoader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    make_mapping: Callable[[Any, Any], Any] = lambda loader, node: loader.construct_mapping(node)  # noqa: E731
    StrictLoader.add_constructor("tag:yaml.org,2002:map", make_mapping)
    return StrictLoader


def parse_int(text: str) -> int:
    """Return the whole number of a JSON text; raise `ValueError` for one of over 100 digits."""
    _check_digits(text)
    return int(text)


def _check_digits(text: str) -> None:
    """Raise `ValueError` for a number of over 100 digits: no size has them, and Python cannot print 4,301."""
    if len(text) > 100:
        raise ValueError(f"a whole number of {len(text):,} digits: {text[:10]}…")


def unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the pairs of a mapping as a dictionary; raise `ValueError` for a key that comes twice."""
    keys: dict[Any, Any] = {}
    for key, value in pairs:
        if isinstance(key, (dict, list)):
            raise ValueError("a key is not plain text")
        if key in keys:
            raise ValueError(f"key {key!r} appears twice")
        keys[key] = value
    return keys


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
