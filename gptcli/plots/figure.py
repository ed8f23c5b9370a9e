"""Figures that need no display and give the same bytes each time."""

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
    """Return an empty figure of `size` inches, drawn in memory."""
    with _quiet_matplotlib():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_bytes(figure: "Figure", file_format: str) -> bytes:
    """Return the figure in one of `FORMATS`, without a date, so that a command repeats its bytes."""
    import matplotlib

    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    with _quiet_matplotlib(), matplotlib.rc_context({"svg.hashsalt": "gptcli"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn instead
        figure.savefig(data, format=file_format, dpi=150, metadata=metadata)
    return data.getvalue()


@contextmanager
def _quiet_matplotlib() -> Iterator[None]:
    """Hide matplotlib's log inside the `with` block: a read-only HOME does not matter to a picture."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
