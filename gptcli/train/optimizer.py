"""The optimizers: AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest."""

import torch
from torch import nn

from gptcli.train.settings import TrainingSettings


class Optimizers:
    """The optimizers of a model, which step together; the schedule scales each group's learning rate."""

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        """Make the optimizers for a model. Biases, norms and other vectors have no weight decay.

        Sources: AdamW, Loshchilov & Hutter 2019 (betas 0.9 and 0.95 as in GPT-3's training); Muon, Jordan et
        al. 2024, for matrices inside the blocks.
        """
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = [p for name, p in named if p.ndim == 2 and "trf_blocks" in name]
        embeddings = [p for name, p in named if p.ndim == 2 and "trf_blocks" not in name]
        vectors = [p for _, p in named if p.ndim < 2]
        with_muon = settings.optimizer == "muon"
        decayed = embeddings if with_muon else embeddings + matrices
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [
                    {"params": decayed, "weight_decay": settings.weight_decay},
                    {"params": vectors, "weight_decay": 0.0},
                ],
                lr=settings.learning_rate,
                betas=(0.9, 0.95),
                fused=True,
            )
        ]
        if with_muon:
            muon = torch.optim.Muon(
                matrices, lr=settings.muon_learning_rate, weight_decay=settings.weight_decay
            )
            self.optimizers.append(muon)
        self._peak_rates = [[group["lr"] for group in one.param_groups] for one in self.optimizers]

    def step(self, factor: float) -> None:
        """Update the parameters with every rate times `factor`, then clear the gradients."""
        for optimizer, rates in zip(self.optimizers, self._peak_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
