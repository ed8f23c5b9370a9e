"""Figures without a display, and as the same bytes each time."""

import io
import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def new_figure(size: tuple[float, float]) -> "Figure":
    """An empty figure of `size` inches, drawn in memory."""
    # A HOME that cannot be written is no news to somebody who wants a picture.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_bytes(figure: "Figure", file_format: str) -> bytes:
    """The figure as one of `FORMATS`, without a date: the same command gives the same bytes."""
    import matplotlib

    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    with matplotlib.rc_context({"svg.hashsalt": "gptcli"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn, which says as much
        figure.savefig(data, format=file_format, dpi=150, metadata=metadata)
    return data.getvalue()
