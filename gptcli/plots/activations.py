"""Plots of activation functions: a figure for a file, or curves in the terminal."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptcli.config.activations import ACTIVATIONS
from gptcli.config.choices import GATES
from gptcli.model.activations import activation_class
from gptcli.plots.figure import new_figure, own_style, to_bytes

Array = np.ndarray[Any, np.dtype[np.float64]]

# Points of the grid on which extremes are searched.
FINE = 200_001

# The labels of the gated kinds. Each is drawn in its scalar form: both branches are x.
GATE_LABELS = {
    "glu": "GLU",
    "bilinear": "Bilinear",
    "reglu": "ReGLU",
    "geglu": "GEGLU",
    "swiglu": "SwiGLU",
}


@dataclass(frozen=True)
class Curve:
    """Samples of a function or its derivative, `y[i]` at `x[i]`; `lowest` is its inner minimum (x, y)."""

    name: str
    label: str
    x: Array
    y: Array
    lowest: tuple[float, float] | None = None


def sample(
    names: Sequence[str], low: float, high: float, points: int, *, derivative: bool = False
) -> list[Curve]:
    """Sample the model's own modules in float64, at `points` evenly spaced x from `low` to `high`."""
    return [_sample(name, low, high, points, derivative) for name in names]


def difference(first: str, second: str, low: float, high: float, points: int) -> tuple[list[Curve], str]:
    """Return the curve of first - second, and a title with its largest absolute value."""
    largest, at = largest_gap(first, second, low, high)
    a, b = sample([first, second], low, high, points)
    curve = Curve(f"{first}-{second}", f"{a.label} - {b.label}", a.x, a.y - b.y)
    return [curve], f"{{}}: at most {largest:.3g}, at x = {at:.3f}"


def largest_gap(first: str, second: str, low: float, high: float) -> tuple[float, float]:
    """Return the largest absolute difference of two functions, and its x (the greatest of several)."""
    a, b = sample([first, second], low, high, FINE)
    gap = np.abs(a.y - b.y)
    largest = float(gap.max())
    return largest, float(np.max(a.x[gap >= largest * (1 - 1e-9)]))


@own_style()
def figure_bytes(curves: Sequence[Curve], title: str, file_format: str, *, panels: bool) -> bytes:
    """Draw a figure as `png`, `svg` or `pdf`, without a display.

    With `panels` each curve has its own panel, as in the tutorial, under `title` with the curve's label in
    place of {}. Without, all curves share one panel with a legend.
    """
    figure = new_figure((4 * len(curves), 3) if panels else (6.4, 4.4))
    axes = figure.subplots(1, len(curves) if panels else 1, squeeze=False)[0]
    for number, curve in enumerate(curves):
        panel = axes[number if panels else 0]
        _draw(panel, curve, number, shared=len(curves) > len(axes))
        panel.set_title(title.format(curve.label) if len(curves) == len(axes) else _plural(title))
        panel.set_xlabel("x")
        panel.set_ylabel(_y_label(curve) if len(curves) == len(axes) else "y")
        panel.grid(True)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small")
    return to_bytes(figure, file_format)


def _draw(panel: Any, curve: Curve, number: int, *, shared: bool) -> None:
    """Draw one curve; in a shared panel every second one is dashed, because curves may cover each other."""
    slope = f"zero slope at x = {curve.lowest[0]:.3f}" if curve.lowest else None
    label = f"{curve.label}, {slope}" if slope else curve.label
    (line,) = panel.plot(
        curve.x, curve.y, "--" if shared and number % 2 else "-", label=label if shared else None
    )
    if curve.lowest:
        panel.plot(*curve.lowest, "o", markersize=4, color=line.get_color(), label=None if shared else slope)


def _y_label(curve: Curve) -> str:
    return curve.label if " " in curve.label else f"{curve.label}(x)"


def _plural(title: str) -> str:
    """Return the title of a shared panel: `{} activation function` becomes `Activation functions`."""
    return title.format("").strip().capitalize() + "s"


def terminal_plot(curves: Sequence[Curve], title: str, columns: int) -> str:
    """Draw the curves below each other in braille dots, to fit a terminal of `columns` columns."""
    import plotille

    width = max(20, min(60, columns - 14) // 10 * 10)  # plotille labels every tenth column
    drawn = []
    for curve in curves:
        plot = plotille.Figure()
        plot.with_colors = False
        low, step, rows = _round_rows(float(curve.y.min()), float(curve.y.max()))
        plot.width, plot.height = width, rows
        plot.set_x_limits(float(curve.x[0]), float(curve.x[-1]))
        plot.set_y_limits(low, low + rows * step)
        plot.x_label, plot.y_label = "x", "y"
        plot.register_label_formatter(float, _tick)
        plot.plot(curve.x.tolist(), curve.y.tolist())
        lines = [title.format(curve.label), ""] + [line.rstrip() for line in plot.show().splitlines()]
        if curve.lowest:
            lines.append(f"zero slope at x = {curve.lowest[0]:.3f}, where it is {curve.lowest[1]:.3f}")
        drawn.append("\n".join(lines) + "\n")
    return "\n".join(drawn)


def _sample(name: str, low: float, high: float, points: int, derivative: bool) -> Curve:
    x = torch.linspace(low, high, points, dtype=torch.float64, requires_grad=True)
    y = _scalar(name)(x)
    label = GATE_LABELS[name] if name in GATES else ACTIVATIONS[name].label
    if derivative:
        (y,) = torch.autograd.grad(y.sum(), x)
        return Curve(name, label, x.detach().numpy(), y.numpy())
    return Curve(name, label, x.detach().numpy(), y.detach().numpy(), _lowest(_scalar(name), low, high))


def _scalar(name: str) -> Callable[[Tensor], Tensor]:
    activation = activation_class(GATES.get(name, name))()
    if name not in GATES:
        return activation
    return lambda x: activation(x) * x


def _lowest(function: Callable[[Tensor], Tensor], low: float, high: float) -> tuple[float, float] | None:
    """Return the minimum of a function that falls below zero and rises again inside the range."""
    x = torch.linspace(low, high, FINE, dtype=torch.float64)
    y = function(x)
    at = int(y.argmin())
    if not 0 < at < len(x) - 1 or y[at] > -1e-3:
        return None
    return float(x[at]), float(y[at])


def _round_rows(low: float, high: float, about: int = 15) -> tuple[float, float, int]:
    """Return the lowest label, the step and the number of rows that cover low … high in round numbers."""
    raw = max(high - low, 1e-6) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw)
    bottom = math.floor(low / step) - 1
    top = math.ceil(high / step) + 1
    return bottom * step, step, top - bottom


def _tick(value: float, chars: int, delta: float, left: bool = False) -> str:  # noqa: ARG001 - plotille's call
    text = f"{round(value, 9) + 0.0:.6g}"  # no -0
    return text.ljust(chars) if left else text.rjust(chars)
