"""A training run in a folder: it tokenizes, trains, validates, samples, saves checkpoints and the model."""

import json
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from gptcli.config.model_config import ModelConfig
from gptcli.decode.loop import decode
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import GptcliError, UsageError, count
from gptcli.runtime.torch_runtime import DTYPES
from gptcli.train.checkpoint import load_checkpoint, save_checkpoint
from gptcli.train.data import GPTDatasetV1, TokenIds, map_tokens, write_tokens
from gptcli.train.evaluate import evaluate
from gptcli.train.loop import TrainStep, training_steps
from gptcli.train.optimizer import Optimizers
from gptcli.train.prepare import check_memory, initial_model, make_folder, stop_signals
from gptcli.train.settings import TrainingSettings
from gptcli.weights.folders import SINGLE
from gptcli.weights.save import save_model
from gptcli.weights.source import ModelSource

LOG = "log.jsonl"
SAMPLE_TOKENS = 40


@dataclass(frozen=True)
class RunOptions:
    """The files of a run, and what it does between steps: `…_every` are steps, 0 is never.

    `output` is the folder of the run, `save_dtype` the name of the dtype that the model is saved in.
    """

    data: Sequence[Path]
    validation: Sequence[Path]
    output: Path
    resume: bool
    save_dtype: str
    evaluate_every: int
    checkpoint_every: int
    sample_every: int
    sample_prompt: str


class Interrupted(Exception):  # noqa: N818 - not an error
    """The end of a run after a signal, once its checkpoint is written."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class TrainingRun:
    """A training run in its folder. `done` counts its finished steps, `best` is its best validation loss."""

    def __init__(
        self,
        source: ModelSource,
        settings: TrainingSettings,
        options: RunOptions,
        device: torch.device,
        *,
        log: Callable[[dict[str, Any]], None],
        note: Callable[[str], None],
    ) -> None:
        """Prepare a run: make its folder, tokenize the texts, load or draw the weights, resume if asked to.

        `log` is called with each record of the log, `note` with each note and sample. PyTorch's global random
        generators are seeded: dropout draws from them. Raises `UsageError` for a folder that is taken,
        `ResourceError` for a model that does not fit.
        """
        self.settings, self.options, self._log, self._note = settings, options, log, note
        config = source.config
        self.tokenizer, self._tokenizer_fingerprint = source.tokenizer, source.tokenizer_fingerprint
        check_memory(config, device)
        make_folder(options.output, resume=options.resume)
        self._sample_ids = self._encode_sample_prompt()
        self.ids, _ = self._tokenize("--data", options.data, "train.tokens", config)
        self.validation_ids, self.validation_bytes = self._tokenize(
            "--validation", options.validation, "validation.tokens", config
        )
        if options.validation and len(self.validation_ids) < 2:
            raise UsageError("--validation: the text has fewer than two tokens, so none is predicted")
        self.model = initial_model(source, settings.seed).to(device)
        self.model.tie_head()
        torch.manual_seed(settings.seed)
        self.optimizers = Optimizers(self.model, settings)
        self.done, self.best = 0, math.inf
        if options.resume:
            self.done, self.best, planned = load_checkpoint(
                options.output, self.model, self.optimizers, self._settings_and_data()
            )
            if planned != settings.steps:
                note(
                    f"the run was planned for {count(planned, 'step')}: from step {self.done + 1} on the"
                    f" learning rate follows the schedule of {settings.steps}"
                )
        if source.tokenizer_source is not None:
            source.tokenizer_source.copy_to(options.output)

    def train(self) -> None:
        """Train to the last step and save the model.

        Raises `Interrupted` after the current step on SIGINT, SIGTERM or SIGHUP, `KeyboardInterrupt` at once
        on a second one, and `NumericsError` for a loss that is not finite.
        """
        settings, options = self.settings, self.options
        dataset = GPTDatasetV1(self.ids, self.tokenizer, settings.max_length, settings.stride)
        stop: list[int] = []

        def ask_to_stop(number: int, _frame: FrameType | None) -> None:
            if stop:  # the second signal ends the run at once; its last checkpoint remains
                raise KeyboardInterrupt
            stop.append(number)

        before = {number: signal.signal(number, ask_to_stop) for number in stop_signals()}
        try:
            for step in training_steps(self.model, self.optimizers, dataset, settings, self.done):
                self.done = step.number
                self._record(step)
                last = step.number == settings.steps
                if options.validation and (last or _is_due(step.number, options.evaluate_every)):
                    self._validate()
                if stop or last or _is_due(step.number, options.checkpoint_every):
                    self._checkpoint()
                if stop and not last:
                    raise Interrupted(stop[0])
                if _is_due(step.number, options.sample_every):
                    self._sample()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if not options.validation or not (options.output / SINGLE).exists():
            self._save_model()  # the last one, where there is no best one

    def _tokenize(
        self, option: str, sources: Sequence[Path], name: str, config: ModelConfig
    ) -> tuple[TokenIds, int]:
        """Encode text files into the token file `name`; return its ids and the bytes of text."""
        path = self.options.output / name
        n_bytes = write_tokens(
            sources, self.tokenizer, config.vocab_size, path, option=option, note=self._note
        )
        ids = map_tokens(path, config.vocab_size)
        if sources:
            self._note(f"{', '.join(map(str, sources))}: {n_bytes:,} bytes, {len(ids):,} tokens")
        return ids, n_bytes

    def _record(self, step: TrainStep) -> None:
        tokens = self.settings.tokens_per_step
        self._write(
            {
                "step": step.number,
                "loss": round(step.loss, 6),
                "gradient_norm": round(step.gradient_norm, 6),
                "rate_factor": round(step.rate_factor, 6),
                "tokens": step.number * tokens,
                "tokens_per_second": round(tokens / step.seconds),
                "seconds_left": round((self.settings.steps - step.number) * step.seconds),
            }
        )

    def _validate(self) -> None:
        start = time.perf_counter()
        result = evaluate(
            self.model,
            self.validation_ids,
            self.validation_bytes,
            max_length=self.settings.max_length,
            stride=self.settings.max_length // 2,
        )
        is_best = result.nats_per_token < self.best
        if is_best:
            self.best = result.nats_per_token
            self._save_model()
        self._write(
            {
                "step": self.done,
                "validation_nats_per_token": round(result.nats_per_token, 6),
                "validation_bits_per_byte": round(result.bits_per_byte, 6),
                "best": is_best,
                "seconds": round(time.perf_counter() - start, 3),
            }
        )

    def _encode_sample_prompt(self) -> list[int]:
        """Return the ids that samples begin with; raises `UsageError` if the model does not have them."""
        if not self.options.sample_every:
            return []
        try:
            return self.tokenizer.encode(self.options.sample_prompt) or list(self.tokenizer.begin_ids())
        except UsageError as error:
            raise UsageError(f"--sample-prompt: {error}") from None

    def _sample(self) -> None:
        """Print a sample; a failure is a note, because the run goes on."""
        self.model.eval()
        try:
            steps = list(decode(TorchEngine(self.model), self._sample_ids, SAMPLE_TOKENS))
        except (GptcliError, RuntimeError, MemoryError) as error:
            self._note(f"no sample: {error or 'out of memory'}")
        else:
            new_ids = [step.token_id for step in steps]
            text = self.options.sample_prompt + self.tokenizer.decode(new_ids, after=self._sample_ids)
            self._note(f"sample: {text!r}")
        finally:
            self.model.train()

    def _save_model(self) -> None:
        save_model(self.model, self.options.output, DTYPES[self.options.save_dtype])

    def _checkpoint(self) -> None:
        save_checkpoint(
            self.options.output, self.model, self.optimizers, self._settings_and_data(), self.done, self.best
        )

    def _settings_and_data(self) -> dict[str, Any]:
        """Return what must be the same when the run is resumed."""
        return self.settings.as_dict() | {
            "training tokens": len(self.ids),
            "tokenizer": self._tokenizer_fingerprint,
        }

    def _write(self, record: dict[str, Any]) -> None:
        with (self.options.output / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._log(record)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
