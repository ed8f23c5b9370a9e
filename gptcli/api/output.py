"""The output of a prompt: its completions, with token counts and times."""

from collections.abc import Sequence
from dataclasses import dataclass

from gptcli.decode.completion import Completion, FinishReason
from gptcli.decode.request import DecodeRequest


@dataclass(frozen=True)
class CompletionOutput:
    """A completion: its text, the ids of all generated tokens, and why it ended.

    `logprobs` are natural logarithms before any temperature, one for each id, or empty unless asked for. The
    end of text and the tokens of a stop string are among the ids but not in the text.
    """

    text: str
    ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason


@dataclass(frozen=True)
class RequestOutput:
    """All completions of one prompt. `text`, `ids`, `logprobs` and `finish_reason` are those of the first.

    Tokens and seconds are totals over all completions: `prefill` up to the first token of each, `decode` for
    all further tokens. In a batch a step's seconds count for each of its sequences.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    prompt_tokens_used: int
    completions: tuple[CompletionOutput, ...]
    prefill_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    ids_without_text: int

    @property
    def text(self) -> str:
        """Return the text of the first completion."""
        return self.completions[0].text

    @property
    def ids(self) -> list[int]:
        """Return the generated ids of the first completion."""
        return self.completions[0].ids

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probabilities of the first completion's ids; empty unless asked for."""
        return self.completions[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Return the reason why the first completion ended."""
        return self.completions[0].finish_reason

    @property
    def n_tokens(self) -> int:
        """Return the number of generated tokens of all completions."""
        return sum(len(completion.ids) for completion in self.completions)


def request_output(request: DecodeRequest, completions: Sequence[Completion]) -> RequestOutput:
    """Return the output for a request and its completions."""
    return RequestOutput(
        prompt=request.prompt,
        prompt_ids=request.prompt_ids,
        prompt_tokens_used=request.prompt_tokens_used,
        completions=tuple(CompletionOutput(c.text, c.ids, c.logprobs, c.finish_reason) for c in completions),
        prefill_tokens=request.prompt_tokens_used * len(completions),
        prefill_seconds=sum(c.prefill_seconds for c in completions),
        decode_tokens=sum(max(0, len(c.ids) - 1) for c in completions),
        decode_seconds=sum(c.decode_seconds for c in completions),
        ids_without_text=sum(c.ids_without_text for c in completions),
    )
