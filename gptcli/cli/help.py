"""The look of `--help`: no Python types next to flags and arguments, which say nothing to a user."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command with this look."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; Typer would show `<bool>` for a flag and `<list[str]>` for an argument."""
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands with this look."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without their type."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - a method of Typer's
    return parameters
