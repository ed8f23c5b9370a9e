"""`gptcli plot-activation`: the tutorial's figure, and the other plots."""

import json
import logging
import re

import matplotlib.figure
import numpy as np
import pytest

from gptcli.cli.plot_activation import NAMES
from gptcli.config.activations import ACTIVATIONS
from gptcli.config.choices import GATES
from gptcli.plots.activations import GATE_LABELS, largest_gap, sample
from gptcli.plots.figure import new_figure, to_bytes


def test_the_tutorials_figure(cli, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *_, **__: shown.append(figure))
    cli("plot-activation", "-o", tmp_path / "a.png")
    (figure,) = shown
    assert tuple(figure.get_size_inches()) == (8, 3)
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["GELU activation function", "ReLU activation function"]
    assert [panel.get_ylabel() for panel in panels] == ["GELU(x)", "ReLU(x)"]
    for panel in panels:
        line = panel.lines[0]
        x = line.get_xdata()
        assert (len(x), x[0], x[-1]) == (100, -3, 3)
        assert panel.get_xlabel() == "x"
        assert panel.xaxis.get_gridlines()[0].get_visible()
    assert panels[1].lines[0].get_ydata().min() == 0


def test_a_picture_leaves_the_log_level_of_matplotlib_as_it_was(cli, tmp_path):
    logger = logging.getLogger("matplotlib")
    before, level = logger.level, logging.INFO
    logger.setLevel(level)
    try:
        assert cli("plot-activation", "-o", tmp_path / "a.png").status == 0
        assert logger.level == level
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_each_ending_gives_its_format(cli, tmp_path, ending, magic):
    path = tmp_path / f"a.{ending}"
    result = cli("plot-activation", "-o", path)
    assert (result.status, result.out, result.err) == (0, "", "")
    first = path.read_bytes()
    assert first.startswith(magic)


def test_without_output_the_plot_is_drawn_in_the_terminal(cli):
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
        (["--range", "3:-3"], "expected LOW:HIGH"),
        (["--range", "a:b"], "expected LOW:HIGH"),
        (["--range=0:inf"], "expected LOW:HIGH"),
        (["--points", "1"], "--points 1: expected 2 to"),
        (["--points", "100000000"], "expected 2 to"),
        (["gelu", "--difference"], "takes two names"),
        (["--csv", "--json"], "give one of them"),
        (["-o", "a.bmp"], "ending in .png, .svg or .pdf"),
        (["-o", "a"], "ending in .png, .svg or .pdf"),
    ],
)
def test_wrong_usage(cli, arguments, message):
    result = cli("plot-activation", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


def test_every_name_can_be_drawn():
    assert set(GATE_LABELS) == set(GATES)
    assert set(NAMES) == {*ACTIVATIONS, *GATES}
    for curve in sample(NAMES, -3, 3, 11):
        assert len(curve.y) == 11


def test_gated_kinds_are_drawn_in_their_scalar_form():
    x = np.linspace(-3, 3, 7)
    for name, gate in {"glu": 1 / (1 + np.exp(-x)), "bilinear": x, "reglu": np.maximum(x, 0)}.items():
        (curve,) = sample([name], -3, 3, 7)
        np.testing.assert_allclose(curve.y, gate * x, atol=1e-12)


def test_derivatives_equal_difference_quotients():
    h = 1e-6
    for name in NAMES:
        (slope,) = sample([name], -2.9, 3.1, 13, derivative=True)
        above, below = (sample([name], -2.9 + d, 3.1 + d, 13)[0].y for d in (h, -h))
        np.testing.assert_allclose(slope.y, (above - below) / (2 * h), atol=1e-5)


def test_the_largest_gap_between_the_two_gelus(cli):
    largest, at = largest_gap("gelu_tanh", "gelu", -5, 5)
    assert f"{largest:.2e}" == "4.73e-04"
    assert at == pytest.approx(2.70, abs=0.01)
    out = cli("plot-activation", "--difference", "gelu_tanh", "gelu").out
    assert out.startswith("GELU (tanh) - GELU (exact): at most 0.000473, at x = 2.699")


@pytest.mark.parametrize(
    ("name", "at"), [("gelu", -0.752), ("gelu_tanh", -0.752), ("silu", -1.278), ("relu", None)]
)
def test_the_point_of_zero_slope_is_marked(name, at):
    (curve,) = sample([name], -3, 3, 50)
    assert (curve.lowest is None) == (at is None)
    if at:
        assert curve.lowest[0] == pytest.approx(at, abs=1e-3)


def test_csv_and_range_and_points(cli):
    out = cli("plot-activation", "relu", "silu", "--range=-1:1", "--points", 3, "--csv").out
    lines = out.splitlines()
    assert lines[0] == "x,relu,silu"
    assert [line.split(",")[:2] for line in lines[1:]] == [["-1.0", "0.0"], ["0.0", "0.0"], ["1.0", "1.0"]]


def test_aliases_and_the_same_bytes_twice(cli, tmp_path):
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf"):
        assert cli("plot-activation", "quick_gelu", "gelu_new", "-o", tmp_path / name).status == 0
    for ending in ("svg", "pdf"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_drawing_leaves_matplotlibs_logger_as_it_was():
    logger = logging.getLogger("matplotlib")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        to_bytes(new_figure((1, 1)), "svg")
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_does_not_depend_on_matplotlibs_settings(process, tmp_path, ending):
    """Plant settings that change a picture, that cannot be obeyed, and that cannot be read."""
    plain, planted = tmp_path / "plain", tmp_path / "planted"
    settings = b"text.usetex: True\nsavefig.dpi: 20\naxes.facecolor: red\nfigure.facecolor: \xff\n"
    pictures = []
    for folder, backend in ((plain, None), (planted, "nonsense")):
        folder.mkdir()
        environment = {} if backend is None else {"MPLBACKEND": backend}
        if backend is not None:
            (folder / "matplotlibrc").write_bytes(settings)
        result = process(*("plot-activation", "gelu", "-o", f"a.{ending}"), cwd=folder, env=environment)
        assert (result.returncode, result.stderr) == (0, b"")
        pictures.append((folder / f"a.{ending}").read_bytes())
    assert pictures[0] == pictures[1]
