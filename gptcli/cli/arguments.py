"""A command's arguments as a record, without naming each of them again."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def to_record(record: type[T], arguments: Mapping[str, Any], **others: Any) -> T:
    """Build a dataclass from the arguments that have the names of its fields.

    `arguments` are a command's `locals()`; `others` replace some of them, or add to them.
    """
    names = {field.name for field in fields(record)}
    return record(**{name: value for name, value in arguments.items() if name in names} | others)
