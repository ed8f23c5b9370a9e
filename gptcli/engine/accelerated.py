"""The base of faster engines, and the one place where a request falls back to PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest

if TYPE_CHECKING:  # it imports torch
    from gptcli.engine.torch_engine import TorchEngine


class AcceleratedEngine(ABC):
    """An engine that is faster than PyTorch for some requests and uses PyTorch for all others."""

    config: ModelConfig
    max_tokens: int
    near_tie_tolerance: float

    @property
    @abstractmethod
    def plain(self) -> TorchEngine:
        """The engine in PyTorch, made when it is first asked for."""

    def new_cache(self, n_sequences: int, capacity: int) -> Any:
        """Return an empty cache, of the kind that the engine which will serve it reads."""
        return self.plain.new_cache(n_sequences, capacity)

    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [B, n_logits, V]."""
        if self.accepts(request):
            return self.forward_fast(request)
        return self.plain.forward(request)

    @abstractmethod
    def accepts(self, request: ForwardRequest) -> bool:
        """Return whether `forward_fast` can serve this request now."""

    @abstractmethod
    def forward_fast(self, request: ForwardRequest) -> Array:
        """Serve a request that `accepts` has accepted, as `forward` does."""

    @abstractmethod
    def describe(self) -> str:
        """Return what computes the logits, in a few words for the user."""
