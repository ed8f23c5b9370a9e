"""One completion: decoded steps become text that streams, until end of text, a stop string, or the budget."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gptcli.decode.loop import Step
from gptcli.decode.request import Request
from gptcli.decode.text_stream import TextStream
from gptcli.tokenizer import Tokenizer

FinishReason = Literal["length", "eos", "stop", "context"]


@dataclass
class Completion:
    """What has been generated so far of one request; complete once it has `ended`.

    `ids` and `logprobs` cover every generated token, end of text and a stop string's included; `text` holds
    neither. Seconds are the model's alone: the first token's (prefill), and all others' (decode).
    """

    request: Request
    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    ended: bool = False
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    ids_without_text: int = 0

    def __post_init__(self) -> None:
        self._stream = TextStream(self.request.stops)
        if self.request.budget == 0:
            self.end()

    def stream(self, steps: Iterator[Step]) -> Iterator[str]:
        """Yield pieces of text as they become certain, and keep the record of them."""
        start = time.perf_counter()
        while not self.ended:
            step = next(steps)
            self.count_seconds(time.perf_counter() - start)
            if piece := self.take(step):
                yield piece
            start = time.perf_counter()

    def count_seconds(self, seconds: float) -> None:
        """Put down what the next token took to come."""
        if self.ids:
            self.decode_seconds += seconds
        else:
            self.prefill_seconds = seconds

    def take(self, step: Step) -> str:
        """Put down one token; gives the text that becomes certain with it, and may end the completion."""
        self.ids.append(step.token_id)
        if step.logprob is not None:
            self.logprobs.append(step.logprob)
        if step.token_id == self.tokenizer.end_of_text and not self.request.ignore_eos:
            self.finish_reason = "eos"
            return self.end()
        token = self.tokenizer.token_bytes(step.token_id)
        self.ids_without_text += token is None
        piece = self._keep(self._stream.feed(token or b""))
        if self._stream.stopped or len(self.ids) == self.request.budget:
            piece += self.end()
        return piece

    def end(self) -> str:
        """No more tokens come; gives the text that was still held back."""
        self.ended = True
        if self.finish_reason == "length" and len(self.ids) < self.request.max_new_tokens:
            self.finish_reason = "context"
        piece = self._keep(self._stream.close())
        if self._stream.stopped:
            self.finish_reason = "stop"
        return piece

    def _keep(self, piece: str) -> str:
        self.text += piece
        return piece
