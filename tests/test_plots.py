"""`plot-activation`: the tutorial's figure, and what else can be asked for."""

import json
import re

import matplotlib.figure
import pytest

from gptcli.plots import figure_bytes, sample


def test_the_tutorials_figure(monkeypatch):
    shown = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, *_, **__: shown.append(figure), raising=True
    )
    figure_bytes(sample(["gelu_tanh", "relu"]), "png")
    (figure,) = shown
    assert tuple(figure.get_size_inches()) == (8, 3)
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["GELU activation function", "ReLU activation function"]
    assert [panel.get_ylabel() for panel in panels] == ["GELU(x)", "ReLU(x)"]
    for panel in panels:
        (line,) = panel.lines
        x = line.get_xdata()
        assert (len(x), x[0], x[-1]) == (100, -3, 3)
        assert panel.get_xlabel() == "x"
        assert panel.xaxis.get_gridlines()[0].get_visible()
    assert panels[1].lines[0].get_ydata().min() == 0


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_files(cli, tmp_path, ending, magic):
    path = tmp_path / f"a.{ending}"
    result = cli("plot-activation", "-o", path)
    assert (result.status, result.out, result.err) == (0, "", "")
    first = path.read_bytes()
    assert first.startswith(magic)


def test_in_the_terminal(cli):
    result = cli("plot-activation", "relu")
    assert result.status == 0
    assert result.out.startswith("ReLU activation function\n")
    assert re.search("[⠁-⣿]", result.out)
    assert "\x1b" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_json_gives_the_points(cli):
    record = json.loads(cli("plot-activation", "gelu", "relu", "--json").out)
    assert len(record["x"]) == 100
    assert record["y"]["relu"] == [max(0.0, x) for x in record["x"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gelux"], "did you mean gelu?"),
        (["-o", "a.bmp"], "ending in .png, .svg or .pdf"),
        (["-o", "a"], "ending in .png, .svg or .pdf"),
    ],
)
def test_wrong_usage(cli, arguments, message):
    result = cli("plot-activation", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err
