"""Figures without a display, and as the same bytes each time."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def new_figure(size: tuple[float, float]) -> "Figure":
    """An empty figure of `size` inches, drawn in memory."""
    with _only_errors():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_bytes(figure: "Figure", file_format: str) -> bytes:
    """The figure as one of `FORMATS`, without a date: the same command gives the same bytes."""
    with _only_errors():
        import matplotlib

    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    with _only_errors(), matplotlib.rc_context({"svg.hashsalt": "gptcli"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn, which says as much
        figure.savefig(data, format=file_format, dpi=150, metadata=metadata)
    return data.getvalue()


@contextmanager
def _only_errors() -> Iterator[None]:
    """Keep matplotlib from logging anything but errors, for the block alone.

    It logs a warning where HOME cannot be written, which does not matter for a picture.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
