"""`gptcli plot-activation`: draw activation functions."""

import csv as csv_module
import io
import math
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable, picture_format
from gptcli.cli.json_text import to_json
from gptcli.cli.output import Notes, OutputWriter
from gptcli.config.activations import ACTIVATIONS, canonical_activation
from gptcli.config.choices import GATES, nearest
from gptcli.errors import UsageError

if TYPE_CHECKING:
    from gptcli.plots.activations import Curve

NAMES: tuple[str, ...] = (*ACTIVATIONS, *GATES)
MOST_POINTS = 1_000_000


def _complete(incomplete: str) -> list[str]:
    return [name for name in NAMES if name.startswith(incomplete.lower())]


def plot_activation(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=_complete,
            help=f"One or more of {', '.join(NAMES)}; default: gelu_tanh relu.",
            show_default=False,
        ),
    ] = None,
    derivative: Annotated[bool, typer.Option("--derivative", help="Draw the derivatives.")] = False,
    difference: Annotated[
        bool,
        typer.Option(
            "--difference",
            help="Draw the first of two functions minus the second, and their largest difference.",
        ),
    ] = False,
    range_: Annotated[
        str, typer.Option("--range", metavar="LOW:HIGH", help="The first and the last x.")
    ] = "-3:3",
    points: Annotated[int, typer.Option("--points", metavar="N", help="The number of points.")] = 100,
    output: options.Output = None,
    json: options.Json = False,
    csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="Print CSV: one line per point, with x and each function.",
            rich_help_panel=options.OUT,
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw activation functions: in the terminal, or with --output as .png, .svg or .pdf.

    Without names it draws the tutorial's figure: GELU, in the tanh form of GPT-2, next to ReLU. Gated
    feed-forwards (glu, swiglu …) are drawn as functions of one number: both branches get x.

    [bold]Examples[/bold]

    gptcli plot-activation

    gptcli plot-activation relu gelu silu --derivative --output derivatives.png

    gptcli plot-activation gelu_tanh gelu --difference

    gptcli plot-activation swiglu geglu --range=-6:6 --csv
    """
    known = [_known(name) for name in names or ("gelu_tanh", "relu")]
    low, high = _range(range_)
    file_format = None if json or csv else picture_format(output)
    if not 2 <= points <= MOST_POINTS:
        raise UsageError(f"--points {points}: expected 2 to {MOST_POINTS:,}")
    if json and csv:
        raise UsageError("--json and --csv: give one of them")
    if difference and (len(known) != 2 or derivative):
        raise UsageError(f"--difference takes two names and no --derivative, got {' '.join(known)}")
    check_writable(output)

    from gptcli.plots import activations as plots

    if difference:
        curves, title = plots.difference(known[0], known[1], low, high, points)
    else:
        curves = plots.sample(known, low, high, points, derivative=derivative)
        title = "{} derivative" if derivative else "{} activation function"
    if not names:  # the tutorial has one GELU, and calls it that
        curves = [replace(curve, label=curve.label.removesuffix(" (tanh)")) for curve in curves]
    writer = OutputWriter(output)
    if file_format:
        writer.write_bytes(plots.figure_bytes(curves, title, file_format, panels=not names))
    elif json or csv:
        writer.write(_as_json(curves) + "\n" if json else _as_csv(curves))
    else:
        writer.write(plots.terminal_plot(curves, title, shutil.get_terminal_size().columns))
    writer.close()
    if difference and (json or csv):
        Notes(quiet).note(title.format(curves[0].label))


def _as_json(curves: "list[Curve]") -> str:
    minima = {curve.name: {"x": curve.lowest[0], "y": curve.lowest[1]} for curve in curves if curve.lowest}
    return to_json(
        {
            "x": curves[0].x.tolist(),
            "y": {curve.name: curve.y.tolist() for curve in curves},
            "zero_slope": minima,
        }
    )


def _as_csv(curves: "list[Curve]") -> str:
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(["x", *(curve.name for curve in curves)])
    writer.writerows(zip(curves[0].x.tolist(), *(curve.y.tolist() for curve in curves), strict=True))
    return text.getvalue()


def _known(name: str) -> str:
    known = (*ACTIVATIONS, *GATES)
    canonical = canonical_activation(name.lower())
    if canonical not in known:
        raise UsageError(f"no activation {name!r}{nearest(canonical, known)}; there are: {', '.join(known)}")
    return canonical


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
        is_range = low < high and math.isfinite(high - low)
    except ValueError:
        is_range = False
    if not is_range:
        raise UsageError(f"--range {text!r}: expected LOW:HIGH, such as --range=-3:3")
    return low, high
