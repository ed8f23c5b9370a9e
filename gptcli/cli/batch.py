"""Many prompts in one run: read ahead, decoded side by side, written in the order of the input."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gptcli.cli.decoding import Decoding
from gptcli.cli.jobs import Job
from gptcli.cli.record import Generation
from gptcli.config.cost import kv_bytes_per_token
from gptcli.decode.batch import Batch, Row
from gptcli.decode.completion import Completion
from gptcli.decode.loop import Step
from gptcli.errors import NumericsError, UsageError
from gptcli.runtime import ReadyModel
from gptcli.system.device import free_bytes

# In batches: what is read at once and begun by length, the longest first; and what may be open, that is read
# and not written. A kill loses the work on what is open, nothing else.
CHUNK, WINDOW = 4, 8
# How long a file's next line may take before work begins with those that are there.
STALL_SECONDS = 0.05


class Jobs(Protocol):
    """Where jobs come from, as `ReadAhead` gives them."""

    ended: bool

    def next(self, timeout_seconds: float | None) -> Job | None:
        """The next job; None when none came in time, or `ended`."""


@dataclass(frozen=True)
class Done:
    """A job's outcome: what was generated, or the error."""

    job: Job
    generation: Generation | None = None
    error: str | None = None

    def record(self) -> dict[str, Any]:
        """The line of JSON: that of a single request behind the `id`, or the prompt and the `error`."""
        if self.generation is None:
            return {"id": self.job.id, "prompt": self.job.prompt, "error": self.error}
        return {"id": self.job.id, **self.generation.record()}


@dataclass
class _Task:
    """A job under way, and how many of its rows are."""

    job: Job
    generation: Generation
    open_rows: int
    error: str | None = None


@dataclass
class BatchRun:
    """Decodes jobs; each outcome goes to `write` as soon as those before it have gone.

    Rows of the batch are samples of jobs: sample s of the job with index i draws like sample
    i · num_samples + s of a single request, whatever its neighbours and however often the run was resumed.
    """

    decoding: Decoding
    ready: ReadyModel
    size: int
    write: Callable[[Done, int], None]
    tokens: int = 0

    def run(self, jobs: Jobs, first_index: int) -> None:
        """Decode all of `jobs`, whose first has that index; `tokens` counts what was generated."""
        self._jobs = jobs
        self._read_index = self._write_index = first_index
        self._waiting: list[Row] = []  # by length, the longest last
        self._tasks: dict[Row, tuple[_Task, Completion]] = {}
        self._began: dict[Row, float] = {}  # rows in the batch, and when their last token came
        self._finished: dict[int, Done] = {}
        asked = self.decoding
        batch = Batch(self.ready.model, self.size, use_cache=asked.use_cache, logprobs=asked.logprobs)
        for row, step in batch.steps(self._take):
            self._put_down(row, step)

    def _take(self, n: int) -> Sequence[Row]:
        """Up to `n` rows for the batch; waits for the input only when nothing else is to be done."""
        while not self._waiting and not self._jobs.ended:
            is_idle = not self._began
            self._read(wait=is_idle)
            if not is_idle:
                break
        taken = [self._waiting.pop() for _ in range(min(n, len(self._waiting)))]
        self._began |= dict.fromkeys(taken, time.perf_counter())
        return taken

    def _read(self, *, wait: bool) -> None:
        room = WINDOW * self.size - (self._read_index - self._write_index)
        timeout = None if wait else 0.0
        for _ in range(min(room, CHUNK * self.size)):
            job = self._jobs.next(timeout)
            if job is None:
                break
            timeout = STALL_SECONDS if wait else 0.0
            self._begin(job)
        self._waiting.sort(key=lambda row: len(row.ids))

    def _begin(self, job: Job) -> None:
        self._read_index += 1
        if job.error is not None:
            return self._finish(Done(job, error=job.error))
        try:
            request = self.decoding.request(job.prompt, job.max_new_tokens)
        except UsageError as error:
            return self._finish(Done(job, error=str(error)))
        n_samples = self.decoding.num_samples
        task = _Task(job, Generation(self.decoding, request, self.ready, in_batch=True), n_samples)
        for sample in range(n_samples):
            completion = Completion(request, self.decoding.tokenizer)
            task.generation.completions.append(completion)
            choose = self.decoding.sampling.chooser(self.decoding.seed, job.index * n_samples + sample)
            row = Row(list(request.prompt_ids), request.budget, choose)
            self._tasks[row] = (task, completion)
            if completion.ended:  # no token was asked for
                self._end(row)
            else:
                self._waiting.append(row)
        return None

    def _put_down(self, row: Row, step: Step | NumericsError) -> None:
        task, completion = self._tasks[row]
        if isinstance(step, NumericsError):
            task.error = str(step)
        else:
            now = time.perf_counter()
            completion.count_seconds(now - self._began[row])
            self._began[row] = now
            completion.take(step)
            self.tokens += 1
            row.ended = completion.ended
        if row.ended:
            del self._began[row]
            self._end(row)

    def _end(self, row: Row) -> None:
        """A row is through; its job is when all of its rows are."""
        task, _ = self._tasks.pop(row)
        task.open_rows -= 1
        if task.open_rows == 0:
            self._finish(Done(task.job, error=task.error) if task.error else Done(task.job, task.generation))

    def _finish(self, done: Done) -> None:
        self._finished[done.job.index] = done
        while (next_ := self._finished.pop(self._write_index, None)) is not None:
            self.write(next_, self.tokens)
            self._write_index += 1


def fitting_size(ready: ReadyModel) -> int:
    """How many rows for `--batch-size auto`: 32 on a CPU, 128 on CUDA, or what half of the memory can hold.

    On two cores 32 rows of GPT-2 small decode ten times as many tokens as one, and 64 rows a third more at
    twice the memory.
    """
    size = 32 if ready.device.type == "cpu" else 128
    row_bytes = kv_bytes_per_token(ready.config, ready.model.tok_emb.weight.element_size())
    row_bytes *= ready.config.context_length
    while size > 1 and size * row_bytes > free_bytes(ready.device) // 2:
        size //= 2
    return size
