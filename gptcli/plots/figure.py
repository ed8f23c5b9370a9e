"""Figures that need no display and give the same bytes each time."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
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
    data = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    with _quiet_matplotlib(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn instead
        figure.savefig(data, format=file_format, dpi=150, metadata=metadata)
    return data.getvalue()


@contextmanager
def own_style() -> Iterator[None]:
    """Draw with matplotlib's defaults, whatever matplotlibrc, MPLBACKEND or an importing program have set."""
    import_matplotlib()
    import matplotlib

    with _quiet_matplotlib(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "gptcli"
        yield


def import_matplotlib() -> None:
    """Import matplotlib with its own matplotlibrc, and without MPLBACKEND.

    It would look in the working folder first, and fail for a file or a backend that it cannot read. So the
    folder of its own file is the working folder meanwhile.
    """
    if "matplotlib" in sys.modules:
        return
    package = find_spec("matplotlib")
    assert package is not None
    assert package.origin is not None
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        with chdir(Path(package.origin).parent / "mpl-data"), _quiet_matplotlib():
            import matplotlib  # noqa: F401 - it reads its settings now
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


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
