"""One completion: decoded steps become text that streams, until end of text, a stop string, or the budget."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gptcli.decode.greedy import Step
from gptcli.decode.request import Request
from gptcli.decode.text import TextStream
from gptcli.tokenizer import Tokenizer

FinishReason = Literal["length", "eos", "stop", "context"]


@dataclass
class Completion:
    """What has been generated so far; complete once `stream` is exhausted.

    `ids` and `logprobs` cover every generated token, end of text and a stop string's included; `text` holds
    neither. Seconds are the model's alone: the first token's (prefill), and all others' (decode).
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    ids_without_text: int = 0

    def stream(self, steps: Iterator[Step], tokenizer: Tokenizer, request: Request) -> Iterator[str]:
        """Yield pieces of text as they become certain, and keep the record of them."""
        text = TextStream(request.stops)
        for step in self._timed(steps):
            self.ids.append(step.token_id)
            if step.logprob is not None:
                self.logprobs.append(step.logprob)
            if step.token_id == tokenizer.end_of_text and not request.ignore_eos:
                self.finish_reason = "eos"
                break
            token = tokenizer.token_bytes(step.token_id)
            self.ids_without_text += token is None
            yield from self._keep(text.feed(token or b""))
            if text.stopped:
                self.finish_reason = "stop"
                return
        else:
            if len(self.ids) < request.max_new_tokens:
                self.finish_reason = "context"
        yield from self._keep(text.close())
        if text.stopped:
            self.finish_reason = "stop"

    def _keep(self, piece: str) -> Iterator[str]:
        if piece:
            self.text += piece
            yield piece

    def _timed(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The same steps, with the seconds that each took to come."""
        start = time.perf_counter()
        for step in steps:
            seconds = time.perf_counter() - start
            if self.ids:
                self.decode_seconds += seconds
            else:
                self.prefill_seconds = seconds
            yield step
            start = time.perf_counter()
