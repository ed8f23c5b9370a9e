"""The same from Python: a model, and its continuation of a prompt. Nothing here prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptcli.decode.completion import Completion, FinishReason
from gptcli.decode.loop import decode
from gptcli.decode.request import prepare
from gptcli.decode.sampling import Sampling
from gptcli.runtime import ReadyModel, make_ready
from gptcli.tokenizer import Tokenizer
from gptcli.weights.hub import fetch, is_hub_name
from gptcli.weights.source import choose_source


@dataclass(frozen=True)
class Text:
    """A continuation: its text, the ids of every generated token, and why it ended."""

    text: str
    ids: list[int]
    finish_reason: FinishReason


def load_model(
    weights: str | Path | None = None,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 123,
) -> ReadyModel:
    """A model that is ready to decode: a weights file or folder, `hf:owner/name`, or a preset.

    A preset gets the weights that ship with it (`stories`), or like a config file random ones, from `seed`.
    What the command line would say on stderr stands in the result's `notes`. Raises the errors of
    `gptcli.errors`.
    """
    path = fetch(str(weights)) if weights is not None and is_hub_name(weights) else _path(weights)
    source = choose_source(preset, _path(config), [], path)
    return make_ready(
        source, device=device, dtype=dtype, seed=seed, cache_tokens=source.config.context_length
    )


def generate(
    model: ReadyModel,
    prompt: str,
    *,
    max_new_tokens: int = 50,
    stops: Sequence[str] = (),
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 123,
) -> Text:
    """The model's continuation of `prompt`: greedy, or sampled with a `temperature` above 0.

    Raises `UsageError` for a prompt that the model cannot take, or numbers that cannot be.
    """
    tokenizer = Tokenizer(model.config)
    request = prepare(prompt, tokenizer, model.config, max_new_tokens=max_new_tokens, stops=tuple(stops))
    choose = Sampling(temperature, top_k, top_p).chooser(seed, 0)
    done = Completion(request, tokenizer)
    steps = decode(
        model.model, request.prompt_ids, request.budget, choose, engine=model.engine, drafts=model.drafts()
    )
    for step in steps:
        done.take(step)
        if done.ended:
            break
    return Text(done.text, done.ids, done.finish_reason)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
