"""The look of `--help`: paragraphs that fill the line, and no Python types next to flags and arguments."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command with this look."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make the command; Typer would keep the line breaks of every paragraph but the first."""
        super().__init__(*args, **options)
        self.help = join_lines(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; Typer would show `<bool>` for a flag and `<list[str]>` for an argument."""
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands with this look."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without their type."""
        return _without_types(super().get_params(ctx))


def join_lines(text: str) -> str:
    """Return a docstring with each paragraph on one line, for a terminal of any width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None  # noqa: ARG005 - a method of Typer's
    return parameters
