"""A completion: its tokens and its streamed text, until end of text, a stop string, or the last token."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gptcli.decode.request import DecodeRequest
from gptcli.decode.select import GeneratedToken
from gptcli.decode.text_stream import TextStream
from gptcli.tokenizer import Tokenizer

FinishReason = Literal["length", "eos", "stop", "context"]


@dataclass
class Completion:
    """A completion that grows token by token, until it is `finished`.

    `ids` and `logprobs` cover every generated token, end of text and the tokens of a stop string included;
    `text` holds neither of those. `prefill_seconds` is the time of the first token, `decode_seconds` that of
    all others, both without the time that the caller takes.
    """

    request: DecodeRequest
    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    finished: bool = False
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    ids_without_text: int = 0

    def __post_init__(self) -> None:
        self._stream = TextStream(self.request.stops)
        self._detokenizer = self.tokenizer.detokenizer(self.request.prompt_ids)
        if self.request.max_tokens == 0:
            self.finish()

    def stream(self, tokens: Iterator[GeneratedToken]) -> Iterator[tuple[GeneratedToken, str]]:
        """Yield each token with the text that becomes certain by it, and record both."""
        start = time.perf_counter()
        while not self.finished:
            token = next(tokens)
            self.add_seconds(time.perf_counter() - start)
            yield token, self.add(token)
            start = time.perf_counter()

    def add_seconds(self, seconds: float) -> None:
        """Add the time of the next token."""
        if self.ids:
            self.decode_seconds += seconds
        else:
            self.prefill_seconds = seconds

    def add(self, token: GeneratedToken) -> str:
        """Append one token, which may finish the completion; return the text that becomes certain by it."""
        self.ids.append(token.token_id)
        if token.logprob is not None:
            self.logprobs.append(token.logprob)
        if token.token_id in self.request.eos_token_ids:
            self.finish_reason = "eos"
            return self.finish()
        self.ids_without_text += self.tokenizer.token_bytes(token.token_id) is None
        piece = self._append_text(self._stream.feed(self._detokenizer.feed(token.token_id)))
        if self._stream.stopped or len(self.ids) == self.request.max_tokens:
            piece += self.finish()
        return piece

    def finish(self) -> str:
        """End the completion; return the text that was still held back."""
        self.finished = True
        if self.finish_reason == "length" and len(self.ids) < self.request.max_new_tokens:
            self.finish_reason = "context"
        piece = self._append_text(self._stream.feed(self._detokenizer.close()) + self._stream.close())
        if self._stream.stopped:
            self.finish_reason = "stop"
        return piece

    def _append_text(self, piece: str) -> str:
        self.text += piece
        return piece
