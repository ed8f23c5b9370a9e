"""Scores of texts: how well a model predicts them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from gptcli.decode.scoring import CHUNK_TOKENS, score_windows, windows
from gptcli.decode.text_chunks import encode_chunks
from gptcli.errors import UsageError

if TYPE_CHECKING:
    from gptcli.runtime import LoadedModel

# Texts are scored together until they have this many tokens.
GROUP_TOKENS = 16 * CHUNK_TOKENS


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts a text: each token but the first, from the tokens before it.

    `nats` is the negative log-likelihood of the `n_scored` predicted tokens.
    """

    n_bytes: int
    n_tokens: int
    n_scored: int
    nats: float

    @property
    def nats_per_token(self) -> float:
        """Return the mean negative log-likelihood; NaN if no token was predicted."""
        return self.nats / self.n_scored if self.n_scored else math.nan

    @property
    def perplexity(self) -> float:
        """Return exp of the nats per token; infinity where that is no float."""
        return math.exp(self.nats_per_token) if not self.nats_per_token > 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Return the negative log-likelihood in bits over the bytes of the whole text in UTF-8."""
        return self.nats / math.log(2) / self.n_bytes if self.n_scored else math.nan


@dataclass(frozen=True)
class TokenScore:
    """How well the model predicted an actual token: its log-probability in nats, and its rank from 1."""

    position: int
    token_id: int
    logprob: float
    rank: int


def score_text(model: LoadedModel, text: str, *, stride: int | None = None) -> TextScore:
    """Return the score of a text of any length.

    The model sees windows of its context length that advance by `stride` tokens, by default half of it; each
    token is predicted once. Raises `UsageError` for a stride that is no window's, and for a token that the
    model does not have; `NumericsError` for logits that are not finite.
    """
    return deque(score_growing(model, [text], stride=stride), maxlen=1).pop()


def score_growing(
    model: LoadedModel, pieces: Iterable[str], *, stride: int | None = None
) -> Iterator[TextScore]:
    """Yield the score so far of a text that comes in pieces, after each window; the last is the whole text's.

    Takes and raises what `score_text` does. The memory that it needs does not grow with the text.
    """
    n_bytes = n_tokens = n_scored = 0
    nats = 0.0

    def ids() -> Iterator[int]:
        nonlocal n_bytes, n_tokens
        for chunk, chunk_ids in encode_chunks(pieces, model.tokenizer):
            n_bytes += len(chunk.encode())
            n_tokens += len(chunk_ids)
            yield from chunk_ids

    length = model.config.context_length
    for scores in score_windows(model.engine, windows(ids(), length, check_stride(stride, length))):
        n_scored += len(scores.logprobs)
        nats -= float(scores.logprobs.sum())
        yield TextScore(n_bytes, n_tokens, n_scored, nats)
    if not n_scored:
        yield TextScore(n_bytes, n_tokens, 0, 0.0)


def score_texts(
    model: LoadedModel, texts: Iterable[str], *, stride: int | None = None
) -> Iterator[tuple[str, TextScore]]:
    """Yield each text with its score; short ones share a forward pass.

    Takes and raises what `score_text` does.
    """
    tokenizer, length = model.tokenizer, model.config.context_length
    stride = check_stride(stride, length)
    for group in _groups((text, tokenizer.encode(text)) for text in texts):
        cut = [list(windows(ids, length, stride)) for _, ids in group]
        scored = score_windows(model.engine, (window for text in cut for window in text))
        for (text, ids), own in zip(group, cut, strict=True):
            n_scored, nats = sum(window.n_scored for window in own), 0.0
            for scores in islice(scored, len(own)):
                nats -= float(scores.logprobs.sum())
            yield text, TextScore(len(text.encode()), len(ids), n_scored, nats)


def score_tokens(model: LoadedModel, ids: Sequence[int], *, stride: int | None = None) -> list[TokenScore]:
    """Return the score of each token but the first, by the windows of `score_text`.

    With a stride of the context length, each window's first token has none. Raises as `score_text` does.
    """
    scores, length = list[TokenScore](), model.config.context_length
    stride = check_stride(stride, length)
    cut = list(windows(ids, length, stride))
    for number, scored in enumerate(score_windows(model.engine, cut)):
        end = number * stride + len(cut[number].ids)
        first = end - cut[number].n_scored
        scores += [
            TokenScore(position, ids[position], float(logprob), int(rank))
            for position, logprob, rank in zip(range(first, end), scored.logprobs, scored.ranks, strict=True)
        ]
    return scores


def perplexity(scores: Sequence[TokenScore]) -> float:
    """Return exp of the mean negative log-probability; NaN if there are no tokens."""
    return TextScore(0, 0, len(scores), -sum(score.logprob for score in scores)).perplexity


def check_stride(stride: int | None, context_length: int) -> int:
    """Return the stride, by default half of the context; raises `UsageError` for one that skips tokens."""
    if stride is None:
        return max(1, context_length // 2)
    if not 1 <= stride <= context_length:
        raise UsageError(
            f"--stride {stride}: expected a number from 1 to {context_length}, the context length"
        )
    return stride


def _groups(encoded: Iterable[tuple[str, list[int]]]) -> Iterator[list[tuple[str, list[int]]]]:
    """Yield texts with their ids in groups of about `GROUP_TOKENS`."""
    group: list[tuple[str, list[int]]] = []
    n = 0
    for each in encoded:
        group.append(each)
        n += len(each[1])
        if n >= GROUP_TOKENS:
            yield group
            group, n = [], 0
    if group:
        yield group
