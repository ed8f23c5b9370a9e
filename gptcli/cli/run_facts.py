"""What decides the text of a batch, in a small file next to its records, for the run that continues it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli.cli.files import write_atomically
from gptcli.errors import UsageError

if TYPE_CHECKING:  # they import NumPy
    from gptcli.api import GenerationOptions, ModelSource

MAX_BYTES = 1 << 16

# These change how fast the text comes, not what it is.
WITHOUT_EFFECT = ("use_cache", "speculation", "draft_tokens")


def run_facts(source: "ModelSource", options: "GenerationOptions", loading: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the text: the weights, their dtype, the tokenizer, and every option of decoding."""
    from gptcli.weights.fingerprint import fingerprint

    facts = {key: value for key, value in asdict(options).items() if key not in WITHOUT_EFFECT}
    if options.sampling.temperature == 0:  # nothing is drawn
        del facts["seed"]
    weights = source.config.model_dump_json() if source.plan is None else fingerprint(source.plan.checkpoint)
    facts |= {"weights": weights, "tokenizer": source.tokenizer_fingerprint}
    facts |= {"dtype": loading["dtype"], "quantize": loading["quantize"]}
    if source.plan is None:
        facts["weights drawn from seed"] = loading["seed"]
    return dict(json.loads(json.dumps(facts)))  # as they are read again


def facts_path(records: Path) -> Path:
    """Return the path of the file that goes with a file of records."""
    return records.with_name(f".{records.name}.run")


def write_facts(records: Path, facts: dict[str, Any]) -> None:
    """Write what decides the text, whole or not at all; raises `ResourceError` if that fails."""
    write_atomically(facts_path(records), (json.dumps(facts, indent=1) + "\n").encode())


def check_facts(records: Path, facts: dict[str, Any]) -> None:
    """Raise `UsageError` unless the records were written with the same weights and options."""
    path = facts_path(records)
    try:
        with path.open("rb") as file:
            saved = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict):
        raise UsageError(
            f"--resume: {records} has no {path.name} next to it, so nothing shows how it was written;"
            " --resume --force continues it all the same"
        )
    names = [key for key in facts if saved.get(key) != facts[key]]
    if names:
        changes = "; ".join(_change(key, saved.get(key), facts[key]) for key in names)
        raise UsageError(
            f"--resume: {records} was written by another run: {changes};"
            " --resume --force continues it all the same"
        )


def _change(key: str, before: Any, now: Any) -> str:
    if key in ("weights", "tokenizer"):
        return f"it had other {key}" if key == "weights" else "it had another tokenizer"
    return f"{key.replace('_', ' ')} was {json.dumps(before)} and is {json.dumps(now)}"
