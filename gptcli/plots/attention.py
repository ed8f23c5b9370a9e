"""Attention maps, as a picture with one color scale or shaded in the terminal."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gptcli.plots.figure import new_figure, own_style, to_bytes

Array = np.ndarray[Any, np.dtype[Any]]

SHADES = " ·░▒▓█"
MOST_LABELS = 48  # with more tokens than this, their texts would overlap


@own_style()
def attention_figure(
    maps: Array, heads: Sequence[int], tokens: Sequence[str], title: str, caption: str, file_format: str
) -> bytes:
    """Draw maps [heads, T, T] in a grid, with tokens on both axes and one color bar from 0 to 1."""
    columns = min(4, len(heads))
    rows = -(-len(heads) // columns)
    side = 2.4 if len(heads) > 1 else 5.0
    figure = new_figure((side * columns + 1.2, side * rows + 1.0))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    image = None
    size = max(4.0, min(9.0, 60 * side / 2.4 / max(1, len(tokens))))
    for panel, head, weights in zip(panels, heads, maps, strict=False):
        image = panel.imshow(weights, vmin=0, vmax=1, cmap="viridis")
        panel.set_title(f"head {head}", fontsize="medium")
        if len(tokens) <= MOST_LABELS:
            panel.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=size)
            panel.set_yticks(range(len(tokens)), tokens, fontsize=size)
            for label in (*panel.get_xticklabels(), *panel.get_yticklabels()):
                label.set_parse_math(False)  # a token may be a dollar sign
    for panel in panels[len(heads) :]:
        panel.set_visible(False)
    figure.suptitle(title)
    figure.supxlabel(f"attended to (key)\n{caption}", fontsize="small", parse_math=False)
    figure.supylabel("attending (query)", fontsize="small")
    if image is not None:
        figure.colorbar(image, ax=list(panels[: len(heads)]), label="attention weight", shrink=0.8)
    return to_bytes(figure, file_format)


def attention_text(weights: Array, tokens: Sequence[str], title: str) -> str:
    """Shade one map [T, T]: a row per token after its text; the columns are the same tokens in order."""
    width = max((len(token) for token in tokens), default=0)
    lines = [
        title,
        " " * width + "  " + "".join(f"{i:<2}" if i % 5 == 0 else "  " for i in range(len(tokens))),
    ]
    for token, row in zip(tokens, weights, strict=True):
        shades = [
            SHADES[min(len(SHADES) - 1, round(float(weight) * (len(SHADES) - 1)))] * 2 for weight in row
        ]
        lines.append(f"{token:>{width}}  {''.join(shades)}".rstrip())
    return "\n".join(lines) + "\n"
