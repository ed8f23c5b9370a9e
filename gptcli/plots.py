"""Pictures of activation functions: a figure for a file, or curves in the terminal."""

import io
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gptcli.model.activations import ACTIVATIONS

# How a plot names each function.
LABELS = {"gelu_tanh": "GELU", "gelu": "exact GELU", "relu": "ReLU"}


@dataclass(frozen=True)
class Curve:
    """One activation function, sampled: `y[i]` is its value at `x[i]`."""

    name: str
    x: np.ndarray
    y: np.ndarray

    @property
    def label(self) -> str:
        return LABELS[self.name]


def sample(names: Sequence[str], low: float = -3.0, high: float = 3.0, points: int = 100) -> list[Curve]:
    """The model's own activation modules at `points` equal steps from `low` to `high`, in float32."""
    x = torch.linspace(low, high, points)
    return [Curve(name, x.numpy(), ACTIVATIONS[name]()(x).numpy()) for name in names]


def figure_bytes(curves: Sequence[Curve], file_format: str) -> bytes:
    """The tutorial's figure, one panel a curve, as `png`, `svg` or `pdf`; needs no display."""
    # A HOME that cannot be written is no news to somebody who wants a picture.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(curves), 3), layout="tight")
    FigureCanvasAgg(figure)
    for panel, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        panel.plot(curve.x, curve.y)
        panel.set_title(f"{curve.label} activation function")
        panel.set_xlabel("x")
        panel.set_ylabel(f"{curve.label}(x)")
        panel.grid(True)
    data = io.BytesIO()
    # No date in the file: the same command writes the same bytes.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    figure.savefig(data, format=file_format, dpi=150, metadata=metadata)
    return data.getvalue()


def terminal_plot(curves: Sequence[Curve], columns: int) -> str:
    """The curves one below the other, in braille dots, on a terminal of so many columns."""
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
        plot.x_label, plot.y_label = "x", f"{curve.label}(x)"
        plot.register_label_formatter(float, _tick)
        plot.plot(curve.x.tolist(), curve.y.tolist())
        lines = [line.rstrip() for line in plot.show().splitlines()]
        drawn.append(f"{curve.label} activation function\n\n" + "\n".join(lines) + "\n")
    return "\n".join(drawn)


def _round_rows(low: float, high: float, about: int = 15) -> tuple[float, float, int]:
    """Lowest label, step and number of rows: about so many, each a round number, around low … high."""
    raw = max(high - low, 1e-6) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw)
    bottom = math.floor(low / step) - 1
    top = math.ceil(high / step) + 1
    return bottom * step, step, top - bottom


def _tick(value: float, chars: int, delta: float, left: bool = False) -> str:  # noqa: ARG001 - plotille's call
    text = f"{round(value, 6) + 0.0:g}"  # no -0
    return text.ljust(chars) if left else text.rjust(chars)
