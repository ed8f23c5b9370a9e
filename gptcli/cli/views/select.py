"""The choice of the view that the options of `gptcli inspect` ask for."""

from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.options import fetch_weights
from gptcli.cli.output import Notes
from gptcli.cli.views import View
from gptcli.config.presets import sources_from_options


def select_view(options: InspectArguments, notes: Notes) -> View:
    """Return the view that is asked for, ready to be printed. Only its own imports are made."""
    if options.gradients:
        from gptcli.cli.views.gradients import GradientView

        return GradientView.compute(options)
    if options.prompt is not None:
        from gptcli.cli.views.forward_pass import ForwardPassView

        return ForwardPassView.run(options, options.source(notes), notes)
    if options.shapes:
        from gptcli.cli.views.shapes import ShapesView

        return ShapesView.run(options)
    weights = options.local_weights(notes)
    if weights is None:
        from gptcli.cli.views.tree import TreeView

        return TreeView(options.resolve())
    if options.diff is not None:
        from gptcli.cli.views.numbers import DiffView

        return DiffView.read(weights, fetch_weights(options.diff, notes))
    if options.tensor_stats or options.check:
        from gptcli.cli.views.numbers import StatsView

        return StatsView.read(weights, check=options.check)
    from gptcli.cli.views.weights import WeightsView

    sources = sources_from_options(options.preset, options.config, options.set or ())
    view = WeightsView.open(weights, sources, options.tokenizer)
    for note in view.notes:
        notes.note(note)
    return view
