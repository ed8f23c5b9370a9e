"""What a training run is decided by."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class Settings:
    """Everything but model and data; a run that is resumed must have the same, `DECISIVE` ones at least."""

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
        """Factor of the learning rates in `step` (from 0): a linear warm-up, then half a cosine.

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
        return self.batch_size * self.accumulate * self.max_length

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def bfloat16_pays(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 have instructions of their own on this device."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # A CPU without them computes bfloat16 more slowly than float32 (PyTorch issue 146508).
    capabilities: dict[str, bool] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # PyTorch 2.9 has it not yet
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
