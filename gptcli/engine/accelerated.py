"""The base of faster engines, and the one place where a request falls back to PyTorch."""

from abc import ABC, abstractmethod

from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel


class AcceleratedEngine(ABC):
    """An engine that is faster than PyTorch for some requests and uses PyTorch for all others."""

    def __init__(self, model: GPTModel) -> None:
        self._model = model
        self.plain = TorchEngine(model)

    @property
    def config(self) -> ModelConfig:
        """Return the config of the model."""
        return self._model.config

    @property
    def near_tie_tolerance(self) -> float:
        """Return the relative difference of a near tie."""
        return self.plain.near_tie_tolerance

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Return the tokens of one sequence that one pass verifies at little more than the cost of one."""

    def new_cache(self, n_sequences: int, capacity: int) -> KVCache:
        """Return an empty cache, for this engine and for PyTorch."""
        return self.plain.new_cache(n_sequences, capacity)

    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [B, n_logits, V]."""
        if self.accepts(request):
            return self.forward_fast(request)
        return self.forward_plain(request)

    @abstractmethod
    def accepts(self, request: ForwardRequest) -> bool:
        """Return whether `forward_fast` can serve this request now."""

    @abstractmethod
    def forward_fast(self, request: ForwardRequest) -> Array:
        """Serve a request that `accepts` has accepted, as `forward` does."""

    def forward_plain(self, request: ForwardRequest) -> Array:
        """Serve any request with PyTorch, as `forward` does."""
        return self.plain.forward(request)

    @abstractmethod
    def describe(self) -> str:
        """Return what computes the logits, in a few words for the user."""
