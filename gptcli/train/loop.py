"""The training loop: it yields after every optimizer step, so that the caller can log, validate and save."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gptcli.errors import NumericsError
from gptcli.model.gpt import GPTModel
from gptcli.model.moe import load_balancing_loss, router_scores
from gptcli.train.data import EndlessBatches, GPTDatasetV1
from gptcli.train.optimizer import Optimizers
from gptcli.train.settings import TrainingSettings


@dataclass(frozen=True)
class TrainStep:
    """A finished optimizer step: `number` counts from 1, `loss` is the mean in nats per token."""

    number: int
    loss: float
    gradient_norm: float
    rate_factor: float
    seconds: float


def training_steps(
    model: GPTModel, optimizers: Optimizers, dataset: GPTDatasetV1, settings: TrainingSettings, done: int = 0
) -> Iterator[TrainStep]:
    """Train the model in place, from `done` steps to `settings.steps`, and yield each step.

    Raises `NumericsError` if the loss is not finite; the weights are then those of the previous step.
    """
    model.train()
    device = next(model.parameters()).device
    sampler = EndlessBatches(dataset, settings.batch_size, settings.seed, start=done * settings.accumulate)
    # The loader draws a seed: from the global generator, that would change the dropout of a resumed run.
    batches = iter(DataLoader(dataset, batch_sampler=sampler, generator=torch.Generator()))
    for number in range(done, settings.steps):
        start = time.perf_counter()
        factor = settings.rate_at(number)
        losses = [_accumulate(model, next(batches), settings, device) for _ in range(settings.accumulate)]
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        loss = sum(losses) / len(losses)
        if not torch.isfinite(norm) or loss != loss:
            raise NumericsError(
                f"the loss is not finite in step {number + 1}; a lower learning rate may help"
            )
        optimizers.step(factor)
        yield TrainStep(number + 1, loss, float(norm), factor, time.perf_counter() - start)


def _accumulate(
    model: GPTModel, batch: Sequence[Tensor], settings: TrainingSettings, device: torch.device
) -> float:
    """Add the gradients of one batch (inputs and targets, [B, T] each) and return its loss.

    In a mixture of experts, `balance_weight` times the sum of the layers' load-balancing losses is added to
    the loss that is minimized (Fedus et al. 2021, equation 4, with α = 0.01).
    """
    inputs, targets = (ids.to(device) for ids in batch)  # [B, T] each
    with (
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.autocast),
        router_scores(model) as scores,
    ):
        logits = model(inputs)  # [B, T, V]
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    total = loss
    for layer in scores:
        total = total + settings.balance_weight * load_balancing_loss(layer, model.config.n_experts_per_token)
    torch.autograd.backward(total / settings.accumulate)
    return loss.item()
