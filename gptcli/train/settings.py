"""The settings that decide the result of a training run."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class TrainingSettings:
    """Everything but the model and the data; a resumed run must have the same settings.

    `max_length` and `stride` are tokens, `warmup_steps` and `steps` are optimizer steps.
    """

    steps: int
    batch_size: int = 32
    accumulate: int = 1
    max_length: int = 256
    stride: int = 256
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 6e-4
    muon_learning_rate: float = 0.02
    final_fraction: float = 0.1
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    balance_weight: float = 0.01
    seed: int = 123
    autocast: bool = False

    def rate_at(self, step: int) -> float:
        """Return the factor of the learning rates in `step` (from 0): a linear warm-up, then half a cosine.

        Source: Loshchilov & Hutter 2017, "SGDR", equation 5, without restarts.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (
            1 + math.cos(math.pi * min(1.0, done))
        )

    @property
    def tokens_per_step(self) -> int:
        """Return the number of tokens that one optimizer step is computed from."""
        return self.batch_size * self.accumulate * self.max_length

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by their names."""
        return asdict(self)


def has_bfloat16_products(device: torch.device) -> bool:
    """Return whether the device has instructions for matrix products in bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # A CPU without them computes bfloat16 more slowly than float32 (PyTorch issue 146508).
    get_capabilities = getattr(torch.cpu, "get_capabilities", dict)  # PyTorch 2.9 does not have it
    capabilities: dict[str, bool] = get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
