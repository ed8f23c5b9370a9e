"""An int8 copy of a float32 model, which drafts tokens for it to verify: it reads a quarter of the bytes."""

from collections.abc import Callable

from gptcli.config.model_config import ModelConfig
from gptcli.engine.native.cache import NativeCache
from gptcli.engine.native.model import NativeModel
from gptcli.model.arrays import Array, PieceRunner
from gptcli.model.quantize import Names, convert_parameters
from gptcli.system.memory import available_bytes
from gptcli.system.threads import default_threads

# Bytes of float32 weights that are quantized in a second, and the part of a step that drafts save:
# tests/benchmarks/native.py. The first is half of what is measured: the copy takes memory, too.
QUANTIZED_BYTES_PER_SECOND, SAVED = 1.5e9, 0.35


def quantize_parameters(parameters: dict[str, Array]) -> dict[str, Array]:
    """Return the parameters with every linear in int8; embeddings, norms and biases are shared.

    A tied head becomes one of its own: the embedding, of which a step reads one row, stays.
    """
    tensors: dict[Names, Array] = {(name,): array for name, array in parameters.items()}
    with PieceRunner(default_threads()) as each:
        return convert_parameters(tensors, None, each, quantize=True)


class Int8DraftModel:
    """The copy, made once a text is long enough to be worth it."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: dict[str, Array],
        n_threads: int,
        step_seconds: Callable[[], float],
    ) -> None:
        """`step_seconds` returns what one step of the copied model takes, infinite where that is unknown."""
        self._config, self._parameters, self._n_threads = config, parameters, n_threads
        self._step_seconds = step_seconds
        self._n_bytes = sum(array.nbytes for array in parameters.values())
        self._model: NativeModel | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether the copy is made."""
        return self._model is not None

    @property
    def is_cheaper(self) -> bool:
        """Return whether int8 is cheaper than what it copies: float32 weights."""
        head = self._parameters.get("out_head.weight", self._parameters["tok_emb.weight"])
        return head.dtype == "float32"

    def is_worth_it(self, tokens_left: int) -> bool:
        """Return whether the copy is there; it is made now where this many tokens are worth it."""
        if not self.is_ready and self.is_cheaper:
            saved_seconds = tokens_left * self._step_seconds() * SAVED  # infinite where nothing was timed
            copy_seconds = self._n_bytes / QUANTIZED_BYTES_PER_SECOND
            if copy_seconds < saved_seconds < float("inf") and available_bytes() > self._n_bytes:
                self.prepare()
        return self.is_ready

    def prepare(self) -> None:
        """Make the copy."""
        if self._model is None:
            self._model = NativeModel(self._config, quantize_parameters(self._parameters), self._n_threads)

    def draft(self, token: int, cache: NativeCache, n: int) -> list[int]:
        """Return n tokens that may follow `token`, the one after what the cache holds."""
        assert self._model is not None
        length, draft = cache.length, list[int]()
        for _ in range(n):
            token = int(self._model.forward([[token]], cache)[0].argmax())
            draft.append(token)
        cache.truncate(length)
        return draft
