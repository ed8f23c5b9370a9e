"""`gptcli generate` with one prompt: text as it is generated, or a JSON record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from gptcli.api import Generation, GenerationOptions, ModelSource, prepare_request
from gptcli.cli.files import check_writable
from gptcli.cli.generate_arguments import GenerateArguments
from gptcli.cli.json_text import to_json
from gptcli.cli.output import Notes, OutputWriter, print_stderr
from gptcli.cli.processes import load_model
from gptcli.cli.prompt import read_prompt
from gptcli.cli.record import json_record, stats_line
from gptcli.errors import count


def generate_prompt(
    arguments: GenerateArguments,
    source: ModelSource,
    options: GenerationOptions,
    loading: dict[str, Any],
    notes: Notes,
) -> None:
    """Decode all samples of the prompt and write them. Of several processes the first reads and writes."""
    group = loading["group"]
    is_first = group is None or group.is_first
    output = arguments.output if is_first else None
    check_writable(output)
    prompt = read_prompt(arguments.prompt or [], notes) if is_first else ""
    prompt = prompt if group is None else group.broadcast_object(prompt)
    request = prepare_request(prompt, source.tokenizer, source.config, options)
    notes.warn(request.warning())
    notes.note(request.note())
    model = load_model(source, notes, cache_tokens=request.cache_tokens, **loading)
    generation = Generation(model, request, options)
    writer = OutputWriter(output)
    for sample in range(options.num_samples):
        pieces = (token.text for token in generation.stream(sample))
        if arguments.json:
            deque(pieces, maxlen=0)  # decode to the end and keep no text
        else:
            writer.write(f"{arguments.separator}\n" if sample else "")
            _write_text(writer, "" if arguments.no_echo else prompt, pieces)
    done = generation.output()
    if arguments.json:
        writer.write(to_json(json_record(done, source, model, logprobs=options.logprobs)) + "\n")
    writer.close()
    if done.ids_without_text:
        notes.note(f"{count(done.ids_without_text, 'generated id')} without text in the vocabulary")
    if arguments.stats:
        print_stderr(stats_line(done, model))


def _write_text(writer: OutputWriter, prompt: str, pieces: Iterator[str]) -> None:
    """Write the prompt, the continuation as it comes, and a newline, even after an interruption."""
    try:
        writer.write(prompt)
        for piece in pieces:
            writer.write(piece)
    except BaseException:  # an error, Ctrl-C, SIGTERM
        writer.end_line()
        raise
    writer.write("\n")
