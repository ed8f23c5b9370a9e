"""One training run in a folder: data prepared, steps taken, validated, sampled, checkpointed, exported."""

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

from gptcli.config.cost import count_parameters
from gptcli.config.model_config import ModelConfig
from gptcli.decode.loop import decode
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import UsageError
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.system.memory import available_bytes, require_memory
from gptcli.tokenizer import Tokenizer
from gptcli.train.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from gptcli.train.data import GPTDatasetV1, TokenIds, map_tokens, write_tokens
from gptcli.train.evaluate import evaluate
from gptcli.train.loop import Step, training_steps
from gptcli.train.optimizer import Optimizers
from gptcli.train.settings import Settings
from gptcli.weights.files import SINGLE
from gptcli.weights.load import load_weights
from gptcli.weights.save import save_model
from gptcli.weights.source import ModelSource

LOG = "log.jsonl"


@dataclass(frozen=True)
class Plan:
    """What a run reads, writes, and does between steps; numbers are steps, 0 is never."""

    data: Sequence[Path]
    validation: Sequence[Path]
    folder: Path
    resume: bool
    save_dtype: torch.dtype
    evaluate_every: int
    checkpoint_every: int
    sample_every: int
    sample_prompt: str


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop; its checkpoint is written."""


class Run:
    """A run under way. `log` takes each record of the log, `say` each note and sample."""

    def __init__(
        self,
        source: ModelSource,
        settings: Settings,
        plan: Plan,
        device: torch.device,
        log: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.plan, self._log, self._say = settings, plan, log, say
        config = source.config
        self.tokenizer = Tokenizer(config)
        _check_room(config, device)
        _check_folder(plan)
        self.ids, _ = self._tokens(plan.data, "train.tokens", config)
        self.validation_ids, self.validation_bytes = self._tokens(
            plan.validation, "validation.tokens", config
        )
        self.model = _initial_model(source, settings.seed).to(device)
        self.model.tie_head()
        torch.manual_seed(settings.seed)
        self.optimizers = Optimizers(self.model, settings)
        self.done, self.best = 0, math.inf
        if plan.resume:
            self.done, self.best = load_checkpoint(
                plan.folder, self.model, self.optimizers, self._settings_and_data()
            )

    def go(self) -> None:
        """Train to the end. SIGINT or SIGTERM ends it after the step under way."""
        settings, plan = self.settings, self.plan
        dataset = GPTDatasetV1(self.ids, self.tokenizer, settings.max_length, settings.stride)
        stop: list[int] = []

        def ask_to_stop(number: int, _frame: FrameType | None) -> None:
            if stop:  # asked twice: at once, with the last checkpoint
                raise KeyboardInterrupt
            stop.append(number)

        before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for step in training_steps(self.model, self.optimizers, dataset, settings, self.done):
                self.done = step.number
                self._record(step)
                last = step.number == settings.steps
                if len(self.validation_ids) > 1 and (last or _due(step.number, plan.evaluate_every)):
                    self._validate()
                if _due(step.number, plan.sample_every):
                    self._say(f"sample: {self._sample()!r}")
                if stop or last or _due(step.number, plan.checkpoint_every):
                    self._checkpoint()
                if stop and not last:
                    raise Interrupted(stop[0])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if not plan.validation:
            save_model(self.model, plan.folder, plan.save_dtype)

    def _tokens(self, sources: Sequence[Path], name: str, config: ModelConfig) -> tuple[TokenIds, int]:
        path = self.plan.folder / name
        n_bytes = write_tokens(sources, self.tokenizer, config.vocab_size, path)
        ids = map_tokens(path, config.vocab_size)
        if sources:
            self._say(f"{', '.join(map(str, sources))}: {n_bytes:,} bytes, {len(ids):,} tokens")
        return ids, n_bytes

    def _record(self, step: Step) -> None:
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
        found = evaluate(
            self.model,
            self.validation_ids,
            self.validation_bytes,
            max_length=self.settings.max_length,
            stride=self.settings.max_length // 2,
        )
        better = found.nats_per_token < self.best
        if better:
            self.best = found.nats_per_token
            save_model(self.model, self.plan.folder, self.plan.save_dtype)
        self._write(
            {
                "step": self.done,
                "validation_nats_per_token": round(found.nats_per_token, 6),
                "validation_bits_per_byte": round(found.bits_per_byte, 6),
                "best": better,
                "seconds": round(time.perf_counter() - start, 3),
            }
        )

    def _sample(self) -> str:
        self.model.eval()
        ids = self.tokenizer.encode(self.plan.sample_prompt)
        steps = list(decode(TorchEngine(self.model), ids, 40))
        self.model.train()
        return self.plan.sample_prompt + self.tokenizer.decode([step.token_id for step in steps])

    def _checkpoint(self) -> None:
        save_checkpoint(
            self.plan.folder, self.model, self.optimizers, self._settings_and_data(), self.done, self.best
        )

    def _settings_and_data(self) -> dict[str, Any]:
        """What must be the same when the run is resumed."""
        return self.settings.as_dict() | {"training tokens": len(self.ids)}

    def _write(self, record: dict[str, Any]) -> None:
        with (self.plan.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._log(record)


def _initial_model(source: ModelSource, seed: int) -> GPTModel:
    """Random weights, or those of a file: as numbers of our own, which may change."""
    if source.plan is None:
        return random_model(source.config, seed)
    model = load_weights(source.plan, device=torch.device("cpu"), dtype=torch.float32).model
    for parameter in model.parameters():  # until here views of the mapped file
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model.requires_grad_(True)


def _check_room(config: ModelConfig, device: torch.device) -> None:
    """Refuse what will not fit: a weight, its gradient and two numbers of AdamW's, in float32."""
    if device.type == "cpu":
        require_memory(
            16 * count_parameters(config), available_bytes(), "weights, gradients and optimizer states"
        )


def _check_folder(plan: Plan) -> None:
    """Make the folder; one with a run or a model in it is not written over."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    held = [name for name in (CHECKPOINT, SINGLE) if (plan.folder / name).exists()]
    if held and not plan.resume:
        raise UsageError(
            f"--output {plan.folder}: holds {held[0]} already; --resume goes on with it, or name another"
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
