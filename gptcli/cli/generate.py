"""`gptcli generate`: continue one prompt or many."""

import re

from gptcli.cli.arguments import takes
from gptcli.cli.generate_arguments import GenerateArguments
from gptcli.cli.output import Notes
from gptcli.system.torchrun import is_follower


@takes(GenerateArguments)
def generate(arguments: GenerateArguments) -> None:
    """Continue a prompt, greedily: the most probable token, again and again.

    The default model is stories, a small trained model that ships with gptcli. Without --weights every other
    preset gets random weights, drawn from --seed, and its text is noise.

    [bold]Examples[/bold]

    gptcli generate "Hello, I am"

    gptcli generate "Once upon a time" --weights gpt2/model.safetensors -n 100

    echo "Q: What is a GPT? A:" | gptcli generate -w gpt2/ --stop "Q:" --no-echo

    gptcli generate "The king" --temperature 0.8 --num-samples 3 --seed 7

    text=$(gptcli generate "Hi" -w gpt2/ --quiet)

    gptcli generate "Hello, I am" --preset gpt2-small --pretrained

    gptcli generate --input prompts.jsonl --output records.jsonl --resume
    """
    loading = arguments.load_options()

    from gptcli.cli.generate_batch import check_batch, generate_batch
    from gptcli.cli.generate_prompt import generate_prompt
    from gptcli.cli.processes import join

    notes = Notes(arguments.quiet or is_follower())
    decoding = arguments.generation_options()
    for stop in decoding.stops:
        if re.search(r"\\[ntr]", stop):
            notes.note(
                f"--stop {stop!r} is looked for as it is, backslash and letter; bash's newline is $'\\n'"
            )
    if not is_follower():  # the files may lie on another machine
        check_batch(arguments)
    source = arguments.source(notes)
    group = join(loading["device"])
    run = generate_prompt if arguments.input is None else generate_batch
    run(arguments, source, decoding, loading | {"group": group}, notes)
    if group is not None:
        group.finish()
