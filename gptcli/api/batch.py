"""Many prompts, decoded in batches; results come in the order of the prompts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from gptcli.api.output import RequestOutput, request_output
from gptcli.config.cost import kv_bytes_per_token
from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.decode.completion import Completion
from gptcli.decode.options import GenerationOptions
from gptcli.decode.request import DecodeRequest, banned_ids, new_processors, prepare_request
from gptcli.decode.sampling import Sampler
from gptcli.decode.select import GeneratedToken
from gptcli.decode.speculation import Speculator
from gptcli.errors import GptcliError, NumericsError, UsageError

if TYPE_CHECKING:
    from gptcli.runtime import LoadedModel

# In batches: the number of prompts that are read at once and started longest first; and the number that may
# be open, which means read and not yet returned. Only the work on open prompts is lost by a kill.
CHUNK, WINDOW = 4, 8
# The longest wait for the next prompt before decoding begins with those that were read.
STALL_SECONDS = 0.05


@dataclass(frozen=True)
class PromptRecord:
    """A prompt of a batch, or the error for a record that cannot be read. `index` counts records from 0."""

    index: int
    id: str | int
    prompt: str = ""
    max_new_tokens: int | None = None  # None: as in the options
    error: str | None = None


@dataclass(frozen=True)
class Result:
    """The result of one record: an output or an error."""

    record: PromptRecord
    output: RequestOutput | None = None
    error: str | None = None
    is_cropped: bool = False  # the prompt was longer than the context


@runtime_checkable
class PromptSource(Protocol):
    """A source of records that may make its reader wait, such as a pipe."""

    ended: bool

    def next(self, timeout_seconds: float | None) -> PromptRecord | None:
        """Return the next record; None if none came in time, or if the source has `ended`."""


def generate_batch(
    model: LoadedModel,
    prompts: Iterable[str | PromptRecord] | PromptSource,
    options: GenerationOptions | None = None,
    *,
    batch_size: int | Literal["auto"] = "auto",
    first_index: int = 0,
    **changes: Any,
) -> Iterator[Result]:
    """Yield the result of every prompt, in order, each as soon as those before it are done.

    Up to `batch_size` sequences are decoded together; `auto` is `fitting_batch_size`. In float32 a prompt
    gets the same text as by itself. Sample s of record i has the random draws of sample i · num_samples + s
    of a single prompt. `changes` are fields of `GenerationOptions`. `first_index` is the index of the first
    record, above 0 when a run is resumed. A prompt that the model cannot take, or with logits that are not
    finite, gets a result with an error. Raises `UsageError` for invalid options.
    """
    options = replace(options or GenerationOptions(), **changes)
    size = fitting_batch_size(model) if batch_size == "auto" else batch_size
    if size < 1:
        raise UsageError(f"--batch-size {size}: expected auto or a whole number, 1 or more")
    if options.speculation == "self":
        model.prepare_draft_model()  # a batch does not use it, but refuses what one prompt refuses
    source = prompts if isinstance(prompts, PromptSource) else _IteratorSource(prompts, first_index)
    return _BatchRun(model, options, source, size, first_index).results()


def fitting_batch_size(model: LoadedModel) -> int:
    """Return a batch size: 32 on a CPU, 128 on CUDA, or what half of the free memory can hold.

    On two cores a batch of 32 sequences of GPT-2 small decodes ten times as many tokens per second as one
    sequence, and 64 a third more with twice the memory. Processes that share a model use the least of their
    sizes.
    """
    from gptcli.system.device import free_bytes

    size = 32 if model.device.type == "cpu" else 128
    sequence_bytes = kv_bytes_per_token(model.config, model.element_bytes) * model.config.context_length
    while size > 1 and size * sequence_bytes > free_bytes(model.device) // 2:
        size //= 2
    return size if model.group is None else min(model.group.all_gather_object(size))


class _IteratorSource:
    """The prompts of an iterable, which never makes its reader wait."""

    def __init__(self, prompts: Iterable[str | PromptRecord], first_index: int) -> None:
        self._prompts, self._index, self.ended = iter(prompts), first_index, False

    def next(self, timeout_seconds: float | None) -> PromptRecord | None:  # noqa: ARG002 - it never waits
        """Return the next record; None if there are no more."""
        prompt = next(self._prompts, None)
        if prompt is None:
            self.ended = True
            return None
        index, self._index = self._index, self._index + 1
        if isinstance(prompt, str):
            return PromptRecord(index, index, prompt)
        return replace(prompt, index=index)


@dataclass
class _OpenRecord:
    """A record that is being decoded: its completions, and how many of them are not finished."""

    record: PromptRecord
    request: DecodeRequest
    completions: list[Completion]
    n_open: int
    error: str | None = None


class _BatchRun:
    """Reads records, decodes their samples in batches, and puts the results in order."""

    def __init__(
        self,
        model: LoadedModel,
        options: GenerationOptions,
        source: PromptSource,
        size: int,
        first_index: int,
    ) -> None:
        self._model, self._options, self._source, self._size = model, options, source, size
        self._tokenizer = model.tokenizer
        banned_ids(options, self._tokenizer)  # raises now, and not for each record
        self._read_index = self._result_index = first_index
        self._waiting: list[SequenceState] = []  # sorted by length, the longest last
        self._open: dict[SequenceState, tuple[_OpenRecord, Completion]] = {}
        self._last_token_times: dict[SequenceState, float] = {}  # of the sequences in the batch
        self._done: dict[int, Result] = {}

    def results(self) -> Iterator[Result]:
        """Decode all records and yield each result when all before it are done."""
        options = self._options
        decoder = BatchDecoder(
            self._model.engine, self._size, use_cache=options.use_cache, logprobs=options.logprobs
        )
        while self._waiting or not self._source.ended:
            for sequence, token in decoder.decode(self._next_sequences):
                self._add_token(sequence, token)
                yield from self._in_order()
            yield from self._in_order()

    def _in_order(self) -> Iterator[Result]:
        while (result := self._done.pop(self._result_index, None)) is not None:
            self._result_index += 1
            yield result

    def _next_sequences(self, n: int) -> Sequence[SequenceState]:
        """Return up to `n` sequences to decode; wait for the source only if there is nothing else to do.

        An idle decoder that gets none ends its loop; `results` then yields what is done and starts it again.
        """
        while not self._waiting and not self._source.ended:
            is_idle = not self._last_token_times
            if is_idle and self._result_index in self._done:
                break  # yield that result before waiting for the source
            self._read(wait=is_idle)
            if not is_idle:
                break
        taken = [self._waiting.pop() for _ in range(min(n, len(self._waiting)))]
        self._last_token_times |= dict.fromkeys(taken, time.perf_counter())
        return taken

    def _read(self, *, wait: bool) -> None:
        n_allowed = WINDOW * self._size - (self._read_index - self._result_index)
        timeout = None if wait else 0.0
        for _ in range(min(n_allowed, CHUNK * self._size)):
            record = self._source.next(timeout)
            if record is None:
                break
            timeout = STALL_SECONDS if wait else 0.0
            self._start(record)
        self._waiting.sort(key=lambda sequence: len(sequence.ids))

    def _start(self, record: PromptRecord) -> None:
        self._read_index += 1
        options = self._options
        if record.error is not None:
            self._done[record.index] = Result(record, error=record.error)
            return
        try:
            request = prepare_request(
                record.prompt, self._tokenizer, self._model.config, options, record.max_new_tokens
            )
        except GptcliError as error:
            self._done[record.index] = Result(record, error=str(error))
            return
        completions = [Completion(request, self._tokenizer) for _ in range(options.num_samples)]
        opened = _OpenRecord(record, request, completions, options.num_samples)
        for sample, completion in enumerate(completions):
            sampler = options.sampling.sampler(options.seed, record.index * options.num_samples + sample)
            sequence = SequenceState(
                list(request.prompt_ids),
                request.max_tokens,
                sampler,
                new_processors(options, request, self._model.config),
                speculator=self._speculator(sampler),
            )
            self._open[sequence] = (opened, completion)
            if completion.finished:  # no token was asked for
                self._finish(sequence)
            else:
                self._waiting.append(sequence)

    def _speculator(self, sampler: Sampler) -> Speculator | None:
        """Return what drafts for a sequence: prompt lookup; steps are shared, so it measures no costs."""
        options = self._options
        if options.speculation in ("off", "self") or not (sampler.is_greedy and options.use_cache):
            return None
        return Speculator(options.draft_tokens, measures=False)

    def _add_token(self, sequence: SequenceState, token: GeneratedToken | NumericsError) -> None:
        opened, completion = self._open[sequence]
        if isinstance(token, NumericsError):
            opened.error = str(token)
        else:
            now = time.perf_counter()
            completion.add_seconds(now - self._last_token_times[sequence])
            self._last_token_times[sequence] = now
            completion.add(token)
            sequence.finished = completion.finished
        if sequence.finished:
            del self._last_token_times[sequence]
            self._finish(sequence)

    def _finish(self, sequence: SequenceState) -> None:
        """Close a sequence; a record is done when all of its sequences are."""
        opened, _ = self._open.pop(sequence)
        opened.n_open -= 1
        if opened.n_open == 0:
            is_cropped = opened.request.warning() is not None
            output = None if opened.error else request_output(opened.request, opened.completions)
            self._done[opened.record.index] = Result(opened.record, output, opened.error, is_cropped)
