"""Sampling: the next token drawn from the model's distribution, made sharper or cut to its likeliest part."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gptcli.decode.loop import Choose, most_probable
from gptcli.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How to cut and sharpen: logits over `temperature`, then the `top_k` best, then the nucleus `top_p`.

    Sources: top-k, Fan et al. 2018, "Hierarchical Neural Story Generation"; top-p, Holtzman et al. 2020, "The
    Curious Case of Neural Text Degeneration". Raises `UsageError` for numbers that cannot be.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @classmethod
    def asked(
        cls, temperature: float | None, top_k: int | None, top_p: float | None, num_samples: int
    ) -> "Sampling":
        """What the options ask for: greedy unless one turns sampling on, then at 1 where none is said."""
        if temperature is None:
            is_on = top_k is not None or top_p is not None or num_samples > 1
            temperature = 1.0 if is_on else 0.0
        return cls(temperature, top_k, top_p)

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UsageError(f"--temperature {self.temperature:g}: expected 0 (greedy) or a number above it")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k}: expected 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: expected a number above 0, up to 1")

    def chooser(self, seed: int, index: int) -> Choose:
        """What chooses the tokens of sample `index`: the same tokens for the same seed, on every device."""
        if self.temperature == 0:
            return most_probable
        generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)

        def draw(logits: Tensor) -> int:
            return int(torch.multinomial(self.probabilities(logits.cpu()), 1, generator=generator))

        return draw

    def probabilities(self, logits: Tensor) -> Tensor:  # [V]
        """The distribution that is drawn from: logits [V] → float32 [V], with sum 1."""
        scaled = logits.float() / self.temperature  # [V]
        if self.top_k is not None and self.top_k < len(scaled):
            least = scaled.topk(self.top_k).values[-1]
            scaled = scaled.masked_fill(scaled < least, -math.inf)
        if self.top_p is not None:
            ordered, order = scaled.sort(descending=True, stable=True)  # [V] each
            probabilities = ordered.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities  # what is likelier, together
            scaled[order[before >= self.top_p]] = -math.inf  # the first one that reaches top_p stays
        return scaled.softmax(-1)
