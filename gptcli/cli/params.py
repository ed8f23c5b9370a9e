"""`gptcli params`: count parameters, bytes and FLOPs, from the config alone."""

from typing import Annotated

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable
from gptcli.cli.json_text import to_json
from gptcli.cli.output import OutputWriter
from gptcli.errors import UsageError


def params(
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Compare all presets in one table.", rich_help_panel=options.MODEL)
    ] = False,
    compare_ffn: Annotated[
        bool,
        typer.Option(
            "--compare-ffn",
            help="Compare all kinds of feed-forward at this model's width.",
            rich_help_panel=options.MODEL,
        ),
    ] = False,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Also show what each of N processes (torchrun) holds and sends, and which GPUs suffice.",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,  # noqa: ARG001 - every command has it, and this one prints no notes
) -> None:
    """Count a model: parameters, bytes, key/value cache, FLOPs. Needs no weights and no torch.

    [bold]Examples[/bold]

    gptcli params --preset gpt2-xl

    gptcli params --all

    gptcli params --compare-ffn

    gptcli params --config my.yaml --set n_layers=24 --json

    gptcli params --preset gpt3-175b --tensor-parallel 8
    """
    if all_ and (preset or config or compare_ffn):
        raise UsageError("--all shows every preset; leave out --preset, --config and --compare-ffn")
    if tensor_parallel is not None and (all_ or compare_ffn):
        raise UsageError("--tensor-parallel is about one model; leave out --all and --compare-ffn")
    check_writable(output)

    from gptcli.cli.views.compare_ffn import compare_ffn_records, compare_ffn_table
    from gptcli.cli.views.counts import count_record, count_text, preset_table
    from gptcli.config.presets import preset_names, resolve_options

    writer = OutputWriter(output)
    if all_:
        models = [resolve_options(name, None, set_ or []) for name in preset_names()]
        writer.write(
            to_json([count_record(model) for model in models]) + "\n" if json else preset_table(models)
        )
    elif compare_ffn:
        width = resolve_options(preset, config, set_ or []).config
        writer.write(to_json(compare_ffn_records(width)) + "\n" if json else compare_ffn_table(width))
    else:
        model = resolve_options(preset, config, set_ or [])
        writer.write(
            to_json(count_record(model, tensor_parallel)) + "\n"
            if json
            else count_text(model, tensor_parallel)
        )
    writer.close()
