"""`gptcli plot-activation`: the activation functions, drawn."""

import shutil
from typing import Annotated, get_args

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable, write_atomically
from gptcli.cli.render import Answer, to_json
from gptcli.config import Activation, nearest
from gptcli.errors import UsageError

NAMES: tuple[str, ...] = get_args(Activation)
FORMATS = ("png", "svg", "pdf")


def plot_activation(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help=f"Of {', '.join(NAMES)}; default: gelu_tanh relu.", show_default=False
        ),
    ] = None,
    output: options.Output = None,
    json: options.Json = False,
    quiet: options.Quiet = False,  # noqa: ARG001 - every command takes it; this one has no notes
) -> None:
    """Draw activation functions: in the terminal, or with --output as .png, .svg or .pdf.

    Without names it is the tutorial's figure: GELU, in the tanh form of GPT-2, beside ReLU.

    [bold]Examples[/bold]

    gptcli plot-activation

    gptcli plot-activation gelu gelu_tanh --output gelu.svg
    """
    chosen = [_known(name) for name in names or ("gelu_tanh", "relu")]
    ending = output.suffix.lower().lstrip(".") if output else ""
    if output and not json and ending not in FORMATS:
        raise UsageError(f"--output {output}: expected a name ending in .png, .svg or .pdf")
    check_writable(output)

    from gptcli.plots import figure_bytes, sample, terminal_plot

    curves = sample(chosen)
    if output and not json:
        write_atomically(output, figure_bytes(curves, ending))
        return
    answer = Answer(output)
    if json:
        functions = {curve.name: curve.y.tolist() for curve in curves}
        answer.write(to_json({"x": curves[0].x.tolist(), "y": functions}) + "\n")
    else:
        answer.write(terminal_plot(curves, shutil.get_terminal_size().columns))
    answer.close()


def _known(name: str) -> str:
    lower = name.lower()
    if lower not in NAMES:
        raise UsageError(f"no activation {name!r}{nearest(lower, NAMES)}; there are: {', '.join(NAMES)}")
    return lower
