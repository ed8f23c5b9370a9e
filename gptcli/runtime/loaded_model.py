"""A loaded model: its engine, what it takes, and the model in PyTorch for those who ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Engine
from gptcli.decode.options import Speculation
from gptcli.decode.speculation import Speculator
from gptcli.errors import UsageError
from gptcli.system.device import Device

if TYPE_CHECKING:
    from gptcli.engine.native.draft import Int8DraftModel
    from gptcli.model.gpt import GPTModel
    from gptcli.parallel.process_group import ProcessGroup
    from gptcli.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, in evaluation mode, with the engine that computes its logits.

    `dtype` is a name such as `float32` or `int8 with float32`; `notes` are for the user. `weight_bytes` are
    those of all weights (a tied head counts once, unless it is int8 and the embedding is not),
    `bytes_per_step` those that decoding one token reads; both of all processes together, where a `group` of
    them shares the model.
    """

    config: ModelConfig
    device: Device
    dtype: str
    load_seconds: float
    notes: tuple[str, ...]
    weight_bytes: int
    bytes_per_step: int
    element_bytes: int  # of a key or value in the cache
    n_threads: int
    engine: Engine
    make_model: Callable[[], GPTModel]
    get_tokenizer: Callable[[], Tokenizer]
    draft_model: Int8DraftModel | None = None
    group: ProcessGroup | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, read when it is first asked for."""
        return self.get_tokenizer()

    @cached_property
    def model(self) -> GPTModel:
        """The model in PyTorch, made when it is first asked for."""
        return self.make_model()

    def device_facts(self) -> dict[str, Any]:
        """Return what a record of a run says about where it ran."""
        facts = {
            "device": str(self.device),
            "dtype": self.dtype,
            "threads": self.n_threads,
            "torch": version("torch"),
            "engine": self.engine.describe(),
        }
        return facts if self.group is None else facts | {"processes": self.group.ranks.world_size}

    def speculator(
        self, speculation: Speculation = "auto", max_draft_tokens: int | None = None
    ) -> Speculator | None:
        """Return what proposes draft tokens for one completion; None for no speculation.

        Raises `UsageError` for `self` where an int8 copy would be no cheaper than the model.
        """
        if speculation == "off":
            return None
        if speculation == "self":
            self.prepare_draft_model()
        return Speculator(
            max_draft_tokens,
            measures=self.group is None,  # several processes must verify the same drafts
            lookup=speculation != "self",
            draft_model=None if speculation == "lookup" else self.draft_model,
        )

    def prepare_draft_model(self) -> None:
        """Make the int8 copy that drafts, now; raises `UsageError` where it would be no cheaper."""
        if self.draft_model is None:
            raise UsageError(
                "--speculate self: an int8 copy drafts for float32 weights, by the native kernels;"
                f" here decodes {self.engine.describe()}"
            )
        if not self.draft_model.is_cheaper:
            raise UsageError("--speculate self: an int8 copy drafts for float32 weights alone")
        self.draft_model.prepare()
