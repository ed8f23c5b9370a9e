"""The choice of the view that the options of `gptcli inspect` ask for."""

from gptcli.cli.render import Notes
from gptcli.cli.views import View
from gptcli.cli.views.inspect_options import InspectOptions
from gptcli.config.presets import chosen_layers


def select_view(options: InspectOptions, notes: Notes) -> View:
    """Return the view that is asked for, ready to be printed. Only its own imports are made."""
    if options.gradients:
        from gptcli.cli.views.gradients import GradientView

        return GradientView.compute(options)
    if options.prompt is not None:
        from gptcli.cli.views.forward_pass import ForwardPassView

        return ForwardPassView.run(options, notes)
    if options.shapes:
        from gptcli.cli.views.shapes import ShapesView

        return ShapesView.run(options)
    if options.weights is None:
        from gptcli.cli.views.tree import TreeView

        return TreeView(options.resolve())
    if options.diff is not None:
        from gptcli.cli.views.numbers import DiffView

        return DiffView.read(options.weights, options.diff)
    if options.tensor_stats or options.check:
        from gptcli.cli.views.numbers import StatsView

        return StatsView.read(options.weights, check=options.check)
    from gptcli.cli.views.weights import WeightsView

    view = WeightsView.open(
        options.weights, chosen_layers(options.preset, options.config, options.assignments)
    )
    for note in view.notes:
        notes.note(note)
    return view
