"""`gptcli inspect`: the insides of a model, a weights file, or one forward pass."""

from typing import cast

from gptcli.cli.arguments import takes
from gptcli.cli.files import check_writable, picture_format
from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.json_text import to_json
from gptcli.cli.output import Notes, OutputWriter
from gptcli.cli.views import PictureView
from gptcli.errors import WeightsError


@takes(InspectArguments)
def inspect(arguments: InspectArguments) -> None:
    """Show a model's modules, a weights file's tensors, what one prompt does inside, or a text's perplexity.

    Only the header of a weights file is read, unless you ask for its numbers, so a large file takes no time.

    [bold]Examples[/bold]

    gptcli inspect --preset gpt2-small

    gptcli inspect gpt2/ --tensor-stats --check

    gptcli inspect -w gpt2/ --prompt "Hello, I am" --logit-lens

    gptcli inspect -w gpt2/ --prompt "Hello, I am" --attention --layer 5 -o maps.png

    gptcli inspect --gradients --output gradients.png

    gptcli inspect -w gpt2/ --score book.txt

    gptcli inspect --score sentences.txt --per-line --quiet | sort -n
    """
    arguments = arguments.checked()
    file_format = picture_format(arguments.output) if arguments.draws and not arguments.json else None
    check_writable(arguments.output)
    if arguments.score is not None:
        from gptcli.cli.inspect_score import inspect_score

        inspect_score(arguments, arguments.score, Notes(arguments.quiet))
        return

    from gptcli.cli.views.select import select_view

    view = select_view(arguments, Notes(arguments.quiet))
    writer = OutputWriter(arguments.output)
    if file_format:
        writer.write_bytes(cast(PictureView, view).picture(file_format))
    else:
        writer.write(to_json(view.as_json()) + "\n" if arguments.json else view.as_text())
    writer.close()
    if view.fault:
        raise WeightsError(view.fault)
