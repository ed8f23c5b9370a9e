"""Commands from dataclasses: each field of a dataclass is an option, and a command takes the whole record.

So each option is declared once, with its help, and a function takes one record instead of twenty parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

from gptcli.errors import UsageError

T = TypeVar("T")
Record = TypeVar("Record", bound="DataclassInstance")

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def option(names: str, help: str, panel: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """Declare an option for `Annotated`: its names, such as "--output -o", its help text and its panel."""
    return typer.Option(*names.split(), help=help, rich_help_panel=panel, metavar=metavar, **more)


def parse_path(text: str) -> Path:
    """Return the path that an option names; `~` is the home folder, also after `=`, where shells leave it.

    An empty text would be the working folder, and is an unset variable of a script.
    """
    if not text:
        raise typer.BadParameter("expected a path, got an empty text; is a variable unset?")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # a user who does not exist; there may be such a file
        return Path(text)


def takes(arguments: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Return a decorator that makes a command: its options are the fields of the dataclass `arguments`."""
    hints = get_type_hints(arguments, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(arguments)  # type: ignore[arg-type]
    ]

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            for name, value in values.items():
                if isinstance(value, int) and abs(value) >= 2**63:  # no count is; NumPy and C take none
                    option_name = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{option_name} {value}: expected a whole number below 2⁶³")
            function(arguments(**values))

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate


def to_record(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a dataclass from the values that are named like its fields; ignore the other values."""
    names = {field.name for field in fields(record)}
    return record(**{name: value for name, value in values.items() if name in names})
