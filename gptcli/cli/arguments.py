"""Commands from dataclasses: each field of a dataclass is an option, and a command takes the whole record.

So an option is declared once, with its help, and is passed on as part of a record instead of one by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")
Record = TypeVar("Record", bound="DataclassInstance")

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def option(*names: str, help: str, panel: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """Declare an option for `Annotated`: its names, its help text, and its panel in `--help`."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, **more)


def takes(arguments: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command of a function that takes one `arguments`, a dataclass of annotated options."""
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
            function(arguments(**values))

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate


def to_record(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a dataclass from those of the values that have the names of its fields."""
    names = {field.name for field in fields(record)}
    return record(**{name: value for name, value in values.items() if name in names})
