"""`gptcli inspect --score`: how well a model predicts a text, as a whole or line by line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli.api.score import TextScore, check_stride, score_growing, score_texts
from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.json_text import to_json, to_json_line
from gptcli.cli.options import source_label
from gptcli.cli.output import Notes, OutputWriter
from gptcli.cli.processes import load_model
from gptcli.cli.progress import progress_bar
from gptcli.cli.table import table
from gptcli.errors import UsageError, count
from gptcli.system.text_file import TextFile

if TYPE_CHECKING:  # it imports NumPy
    from gptcli.api import LoadedModel


def inspect_score(arguments: InspectArguments, path: Path, notes: Notes) -> None:
    """Score the text in the file `path`, or on stdin for `-`, and write the answer."""
    with TextFile.open("--score", path) as text:
        source = arguments.source(notes)
        context = source.config.context_length
        stride = check_stride(arguments.stride, context)
        model = load_model(source, notes, cache_tokens=context, **arguments.load_options())
        writer = OutputWriter(arguments.output)
        if arguments.per_line:
            _write_lines(model, text, stride, writer, notes, as_json=arguments.json)
        else:
            score = _score_whole(model, text, stride, notes)
            label = source_label(source, arguments.seed)
            facts = {"of": label, "text": str(path), "context_length": context, "stride": stride}
            if arguments.json:
                writer.write(to_json(facts | _numbers(score) | {"device": model.device_facts()}) + "\n")
            else:
                writer.write(_as_text(facts, score))
        writer.close()
        notes.note(text.note())


def _score_whole(model: "LoadedModel", text: TextFile, stride: int, notes: Notes) -> TextScore:
    """Return the score of the whole text, with a progress bar over its bytes."""
    with progress_bar(text.n_bytes, is_wanted=not notes.quiet) as bar:
        for score in score_growing(model, text.pieces(), stride=stride):
            bar.advance(score.n_bytes * (score.n_scored + 1) // (score.n_tokens or 1), score.n_scored)
    if not score.n_scored:
        raise UsageError(
            f"--score {text.path}: a text of {count(score.n_tokens, 'token')}; expected 2 or more, since each"
            " is predicted from those before it"
        )
    return score


def _write_lines(
    model: "LoadedModel", text: TextFile, stride: int, writer: OutputWriter, notes: Notes, *, as_json: bool
) -> None:
    """Write one line for each line of the text, with a progress bar over its bytes."""
    n_bytes = n_tokens = n_without = 0
    with progress_bar(text.n_bytes, is_wanted=not notes.quiet) as bar:
        for number, (line, score) in enumerate(score_texts(model, text.lines(), stride=stride), start=1):
            if as_json:
                writer.write(to_json_line({"line": number, "text": line} | _numbers(score)) + "\n")
            else:
                measures = (score.nats_per_token, score.perplexity, score.bits_per_byte)
                cells = [*(f"{measure:.4f}" for measure in measures), str(score.n_tokens), line]
                writer.write("\t".join(cells) + "\n")
            n_bytes, n_tokens = n_bytes + score.n_bytes + 1, n_tokens + score.n_tokens
            n_without += not score.n_scored
            bar.advance(n_bytes, n_tokens)
    if n_without:
        notes.note(
            f"{count(n_without, 'line')} of one token or none: nothing to predict, so the score is nan"
        )


def _numbers(score: TextScore) -> dict[str, Any]:
    return {
        "bytes": score.n_bytes,
        "tokens": score.n_tokens,
        "tokens_scored": score.n_scored,
        "nats": score.nats,
        "nats_per_token": score.nats_per_token,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
    }


def _as_text(facts: dict[str, Any], score: TextScore) -> str:
    rows = [
        ("bytes", f"{score.n_bytes:,}"),
        ("tokens", f"{score.n_tokens:,}"),
        ("nats a token", f"{score.nats_per_token:.4f}"),
        ("perplexity", f"{score.perplexity:.4f}"),
        ("bits a byte", f"{score.bits_per_byte:.4f}"),
    ]
    windows = f"windows of {facts['context_length']} tokens that advance by {facts['stride']}"
    return f"{facts['of']}, text {facts['text']}, {windows}\n\n" + table(("", "value"), rows, numbers=(1,))
