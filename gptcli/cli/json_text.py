"""Strict JSON: numbers that are not finite become strings."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, indent: str = "") -> str:
    """Return strict JSON with one key per line; a list of numbers or names stays on one line.

    Numbers that are not finite become the strings "NaN", "Infinity", "-Infinity".
    """
    deeper = indent + "  "
    if isinstance(value, Mapping) and value:
        items = [
            f"{deeper}{json.dumps(str(k), ensure_ascii=False)}: {to_json(v, deeper)}"
            for k, v in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return "[\n" + ",\n".join(deeper + to_json(item, deeper) for item in value) + f"\n{indent}]"
        return "[" + ", ".join(to_json(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def to_json_line(value: Any) -> str:
    """Return strict JSON on one line, for a file of JSON lines."""
    if isinstance(value, Mapping):
        items = [f"{json.dumps(str(k), ensure_ascii=False)}: {to_json_line(v)}" for k, v in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(to_json_line, value)) + "]"
    return to_json(value)
