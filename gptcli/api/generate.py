"""Generation from one prompt: whole completions, streamed text, or single tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gptcli.api.output import RequestOutput, request_output
from gptcli.decode.completion import Completion
from gptcli.decode.loop import decode
from gptcli.decode.options import GenerationOptions
from gptcli.decode.request import DecodeRequest, new_processors, prepare_request
from gptcli.errors import UsageError

if TYPE_CHECKING:
    from gptcli.runtime import LoadedModel


@dataclass(frozen=True)
class StreamedToken:
    """A generated token of a stream.

    `text` is the text that becomes certain with this token. It may be empty, since half a character or the
    beginning of a stop string is held back. `logprob` is None unless it was asked for.
    """

    token_id: int
    text: str
    logprob: float | None = None


def generate(
    model: LoadedModel, prompt: str, options: GenerationOptions | None = None, **changes: Any
) -> RequestOutput:
    """Return the completions of a prompt: one, or `num_samples`.

    `changes` are fields of `GenerationOptions`, such as `max_new_tokens=20`. Raises `UsageError` for a prompt
    that the model cannot take and for invalid options, `NumericsError` for logits that are not finite.
    """
    generation = Generation.of_prompt(model, prompt, _with(options, changes))
    return generation.run()


def stream(
    model: LoadedModel, prompt: str, options: GenerationOptions | None = None, **changes: Any
) -> Iterator[str]:
    """Yield the text of one completion in pieces, each as soon as it is certain.

    Takes and raises what `generate` does.
    """
    return (token.text for token in stream_tokens(model, prompt, options, **changes) if token.text)


def stream_tokens(
    model: LoadedModel, prompt: str, options: GenerationOptions | None = None, **changes: Any
) -> Iterator[StreamedToken]:
    """Yield each token of one completion with its text, and with `logprobs=True` its log-probability.

    Takes and raises what `generate` does.
    """
    options = _with(options, changes)
    if options.num_samples != 1:
        raise UsageError(f"num_samples {options.num_samples}: a stream is one completion; expected 1")
    return Generation.of_prompt(model, prompt, options).stream(0)


class Generation:
    """The completions of one prompt, decoded on demand."""

    def __init__(self, model: LoadedModel, request: DecodeRequest, options: GenerationOptions) -> None:
        """Prepare to decode; raises `UsageError` for speculation that the model does not support."""
        if options.speculation == "self":
            model.prepare_draft_model()  # now, so that an error comes before any text
        self._model, self._request, self._options = model, request, options
        self._tokenizer = model.tokenizer
        self._completions: list[Completion] = []

    @classmethod
    def of_prompt(cls, model: LoadedModel, prompt: str, options: GenerationOptions) -> Generation:
        """Return the generation for a prompt; raises `UsageError` for one that the model cannot take."""
        request = prepare_request(prompt, model.tokenizer, model.config, options)
        return cls(model, request, options)

    def stream(self, sample: int) -> Iterator[StreamedToken]:
        """Decode one completion and yield its tokens; `sample` selects its random draws."""
        model, options = self._model, self._options
        tokens = decode(
            model.engine,
            self._request.prompt_ids,
            self._request.max_tokens,
            options.sampling.sampler(options.seed, sample),
            new_processors(options, self._request, model.config),
            use_cache=options.use_cache,
            logprobs=options.logprobs,
            speculator=model.speculator(options.speculation, options.draft_tokens),
        )
        completion = Completion(self._request, self._tokenizer)
        self._completions.append(completion)
        for token, text in completion.stream(tokens):
            yield StreamedToken(token.token_id, text, token.logprob)

    def run(self) -> RequestOutput:
        """Decode every completion to its end and return them."""
        for sample in range(self._options.num_samples):
            deque(self.stream(sample), maxlen=0)
        return self.output()

    def output(self) -> RequestOutput:
        """Return the completions so far."""
        return request_output(self._request, self._completions)


def _with(options: GenerationOptions | None, changes: dict[str, Any]) -> GenerationOptions:
    return replace(options or GenerationOptions(), **changes)
