"""`gptcli generate` with one prompt: its text as it comes, or its record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from gptcli.cli.decoding import Decoding
from gptcli.cli.render import Answer, Notes, say, to_json


def generate_one(
    decoding: Decoding,
    prompt: str,
    notes: Notes,
    *,
    output: Path | None,
    json: bool,
    echo: bool,
    separator: str,
    stats: bool,
) -> None:
    """Decode every sample of one prompt, with what is to be said on stderr."""
    request = decoding.request(prompt)
    notes.warn(request.warning())
    notes.note(request.note())

    from gptcli.cli.record import Generation

    sampling = decoding.sampling  # its faults come before the model is loaded
    ready = decoding.load(notes, cache_tokens=request.cache_tokens)
    generation = Generation(decoding, request, ready)
    answer = Answer(output)
    for index in range(decoding.num_samples):
        pieces = generation.pieces(sampling.chooser(decoding.seed, index))
        if json:
            deque(pieces, maxlen=0)  # runs to the end, keeps nothing
        else:
            answer.write(f"{separator}\n" if index else "")
            stream_text(answer, prompt if echo else "", pieces)
    if json:
        answer.write(to_json(generation.record()) + "\n")
    answer.close()
    notes.note(generation.note())
    if stats:
        say(generation.stats())


def stream_text(answer: Answer, prompt: str, pieces: Iterable[str]) -> None:
    """Prompt and continuation as they come, then a newline; what was printed stays when it is interrupted."""
    try:
        answer.write(prompt)
        for piece in pieces:
            answer.write(piece)
    except BaseException:  # an error, Ctrl-C, SIGTERM
        answer.end_line()
        raise
    answer.write("\n")
