"""`gptcli inspect`: what is inside a model or a weights file."""

from pathlib import Path
from typing import Annotated

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable
from gptcli.cli.render import Answer, Notes, to_json
from gptcli.errors import UsageError, WeightsError
from gptcli.presets import chosen_layers, resolve_options


def inspect(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="WEIGHTS", help="A weights file or folder: the same as --weights.", show_default=False
        ),
    ] = None,
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = None,
    weights: options.Weights = None,
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Show a model's modules, or every tensor of a weights file and where it goes.

    Of a weights file only the header is read, so a large one answers at once.

    [bold]Examples[/bold]

    gptcli inspect --preset gpt2-small

    gptcli inspect gpt2/model.safetensors

    gptcli inspect gpt2/ --json
    """
    if file is not None and weights is not None:
        raise UsageError("the weights are given twice, as an argument and as --weights; give one of them")
    weights = file if file is not None else weights
    check_writable(output)
    answer = Answer(output)
    fault = None
    if weights is None:
        from gptcli.cli import tree

        model = resolve_options(preset, config, set_ or [])
        answer.write(to_json(tree.as_json(model)) + "\n" if json else tree.as_text(model))
    else:
        from gptcli.cli.weights_view import WeightsView

        view = WeightsView.open(weights, chosen_layers(preset, config, set_ or []))
        answer.write(to_json(view.as_json()) + "\n" if json else view.as_text())
        for note in view.notes:
            Notes(quiet).note(note)
        fault = view.fault
    answer.close()
    if fault:
        raise WeightsError(fault)
