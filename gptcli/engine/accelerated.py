"""The one place where an engine that cannot serve a request leaves it to the plain one."""

from abc import ABC, abstractmethod

from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel


class AcceleratedEngine(ABC):
    """An engine that is faster than PyTorch for some requests; the others PyTorch serves."""

    def __init__(self, model: GPTModel) -> None:
        self._model = model
        self.plain = TorchEngine(model)

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self._model.config

    @property
    def near_tie_tolerance(self) -> float:
        """How close two logits are a near tie."""
        return self.plain.near_tie_tolerance

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Tokens of one sequence that one pass verifies at little more than the cost of one."""

    def new_cache(self, n_sequences: int, capacity: int) -> KVCache:
        """Return an empty cache, which both engines read."""
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
        """Do what `forward` does, for a request that was accepted."""

    def forward_plain(self, request: ForwardRequest) -> Array:
        """Do what `forward` does, by PyTorch."""
        return self.plain.forward(request)

    @abstractmethod
    def describe(self) -> str:
        """Return what computes, in a few words for people."""
