"""`--help`: its paragraphs fill the line at any width."""

import re
from itertools import pairwise

import pytest

from gptcli.cli import boundary, convert, train
from gptcli.cli.app import app

GENERATE = "The default model .* noise\\."
INSPECT = "Only the header .* time\\."
DRAW = "Without names .* get\\s+x\\."
TRAIN = "Ctrl-C .* stop\\."
CONVERT = "SOURCE is .* SOURCE\\."


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("arguments", "paragraph"),
    [
        (["generate"], GENERATE),
        (["inspect"], INSPECT),
        (["plot-activation"], DRAW),
        ([train], TRAIN),
        ([convert], CONVERT),
    ],
)
def test_a_line_breaks_only_where_the_next_word_does_not_fit(monkeypatch, capfd, width, arguments, paragraph):
    monkeypatch.setenv("COLUMNS", str(width))
    program = (app, "gptcli")
    if arguments[0] in (train, convert):
        module, *arguments = arguments
        program = (module.app, module.PROGRAM)
    assert boundary.run(*program, [*arguments, "--help"]) == 0
    match = re.search(paragraph, capfd.readouterr().out, re.DOTALL)
    lines = [line.strip() for line in match[0].splitlines()]
    for line, following in pairwise(lines):
        assert len(line) + 1 + len(following.split()[0]) > width - 2, line
