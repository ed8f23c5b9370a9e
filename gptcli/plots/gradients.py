"""A chart of the gradients of each layer, without shortcuts and with them."""

from collections.abc import Sequence

from gptcli.explain.gradients import GradientRow
from gptcli.plots.figure import new_figure, own_style, to_bytes


@own_style()
def gradient_chart(rows: Sequence[GradientRow], title: str, caption: str, file_format: str) -> bytes:
    """Draw two bars per layer on a logarithmic axis."""
    figure = new_figure((max(6.4, 0.45 * len(rows) + 2), 4.4))
    panel = figure.subplots()
    places = range(len(rows))
    panel.bar([p - 0.2 for p in places], [r.without_shortcuts for r in rows], 0.4, label="without shortcuts")
    panel.bar([p + 0.2 for p in places], [r.with_shortcuts for r in rows], 0.4, label="with shortcuts")
    panel.set_yscale("log")
    panel.set_ylabel("mean absolute gradient")
    turned = 90 if len(rows) > 12 else 20
    panel.set_xticks(list(places), [row.name for row in rows], rotation=turned, fontsize="small")
    panel.set_xlabel(caption, fontsize="small")
    panel.set_title(title)
    panel.grid(True, axis="y", alpha=0.4)
    panel.legend()
    return to_bytes(figure, file_format)
