"""`gptcli inspect`: the insides of a model, a weights file, or one forward pass."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gptcli.cli import options
from gptcli.cli.arguments import to_record
from gptcli.cli.files import check_writable, picture_format
from gptcli.cli.render import Answer, Notes, to_json
from gptcli.cli.views import PictureView
from gptcli.errors import UsageError, WeightsError

if TYPE_CHECKING:
    from gptcli.cli.views.inspect_options import InspectOptions

PASS, NUMBERS, GRADIENTS = "One forward pass", "The numbers in a file", "Gradients"


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
    pretrained: options.Pretrained = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Run TEXT through the model; shows its tokens.", rich_help_panel=PASS
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="The N most probable next tokens.", rich_help_panel=PASS)
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(metavar="P", help="... after token P, from 0; default: the last.", rich_help_panel=PASS),
    ] = None,
    all_positions: Annotated[
        bool,
        typer.Option(
            "--all-positions", help="Each token's log-probability; perplexity.", rich_help_panel=PASS
        ),
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Statistics after every sub-layer.", rich_help_panel=PASS)
    ] = False,
    logit_lens: Annotated[
        bool, typer.Option("--logit-lens", help="What each layer would predict.", rich_help_panel=PASS)
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Attention maps; a picture with -o.", rich_help_panel=PASS)
    ] = False,
    layer: Annotated[
        int, typer.Option(metavar="L", help="... of layer L, from 0.", rich_help_panel=PASS)
    ] = 0,
    head: Annotated[
        int | None,
        typer.Option(metavar="H", help="... of head H, from 0; default: all.", rich_help_panel=PASS),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="The shapes at every module.", rich_help_panel=PASS)
    ] = False,
    batch: Annotated[
        int, typer.Option(metavar="B", help="... without a prompt, for B rows", rich_help_panel=PASS)
    ] = 2,
    tokens: Annotated[int, typer.Option(metavar="T", help="... of T tokens each.", rich_help_panel=PASS)] = 3,
    tensor_stats: Annotated[
        bool,
        typer.Option(
            "--tensor-stats", help="Range, mean, zeros, NaN of each tensor.", rich_help_panel=NUMBERS
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="The same; exit 1 on NaN or infinity.", rich_help_panel=NUMBERS)
    ] = False,
    diff: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="Compare with other weights.", rich_help_panel=NUMBERS),
    ] = None,
    gradients: Annotated[
        bool,
        typer.Option("--gradients", help="By layer, with shortcuts and without.", rich_help_panel=GRADIENTS),
    ] = False,
    layer_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…", help="... of a small network; default: 3,3,3,3,3,1.", rich_help_panel=GRADIENTS
        ),
    ] = None,
    device: options.Device = "auto",
    seed: options.Seed = 123,
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Show a model's modules, a weights file's tensors, or what one prompt does inside.

    Only the header of a weights file is read, unless you ask for its numbers, so a large file takes no time.

    [bold]Examples[/bold]

    gptcli inspect --preset gpt2-small

    gptcli inspect gpt2/ --tensor-stats --check

    gptcli inspect -w gpt2/ --prompt "Hello, I am" --logit-lens

    gptcli inspect -w gpt2/ --prompt "Hello, I am" --attention --layer 5 -o maps.png

    gptcli inspect --gradients --output gradients.png
    """
    arguments = locals()  # before other names are bound
    if file is not None and weights is not None:
        raise UsageError("the weights are given twice, as an argument and as --weights; give one of them")

    from gptcli.cli.views.inspect_options import InspectOptions
    from gptcli.cli.views.select import select_view
    from gptcli.cli.weights_option import asked_weights

    notes = Notes(quiet)
    asked = to_record(
        InspectOptions,
        arguments,
        assignments=set_ or [],
        weights=asked_weights(weights if file is None else file, pretrained, preset),
        seed=options.check_seed(seed),
        device=options.check_device(device),
    )
    asked.check_usage()
    file_format = picture_format(output) if asked.draws and not json else None
    check_writable(output)
    view = select_view(_fetch_weights(asked, notes), notes)
    answer = Answer(output)
    if file_format:
        answer.write_bytes(cast(PictureView, view).picture(file_format))
    else:
        answer.write(to_json(view.as_json()) + "\n" if json else view.as_text())
    answer.close()
    if view.fault:
        raise WeightsError(view.fault)


def _fetch_weights(asked: "InspectOptions", notes: Notes) -> "InspectOptions":
    """Return the options with paths on this machine in place of repositories of the hub."""
    from gptcli.cli.weights_option import local_weights

    return replace(asked, weights=local_weights(asked.weights, notes), diff=local_weights(asked.diff, notes))
