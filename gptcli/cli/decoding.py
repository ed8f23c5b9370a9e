"""What a `generate` command asks for, but for its prompts: the model, and how to decode with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gptcli.cli.render import Notes
from gptcli.config.presets import ResolvedConfig
from gptcli.decode.request import Request, prepare
from gptcli.errors import UsageError
from gptcli.tokenizer import Tokenizer
from gptcli.weights.plan import LoadPlan

if TYPE_CHECKING:  # these import torch, which a wrong prompt need not wait for
    from gptcli.decode.sampling import Sampling
    from gptcli.parallel.process_group import ProcessGroup
    from gptcli.runtime import ReadyModel, Speculation


@dataclass(frozen=True)
class Decoding:
    """The options of `generate`, checked, with the model they chose not yet loaded."""

    source: ResolvedConfig | LoadPlan
    weights: Path | None
    device: str
    dtype: str
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...]
    ignore_eos: bool
    slide: bool
    plain_prompt: bool
    use_cache: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    num_samples: int
    logprobs: bool
    speculate: Speculation
    draft_tokens: int | None
    quantize: bool
    threads: int | None
    group: ProcessGroup | None = None  # of processes that share the model

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return Tokenizer(self.source.config)

    @cached_property
    def sampling(self) -> Sampling:
        """How tokens are chosen; raises `UsageError` for numbers that cannot be."""
        from gptcli.decode.sampling import Sampling

        return Sampling.asked(self.temperature, self.top_k, self.top_p, self.num_samples)

    def request(self, prompt: str, max_new_tokens: int | None = None) -> Request:
        """One prompt, ready to decode; raises `UsageError` for one that the model cannot take."""
        return prepare(
            prompt,
            self.tokenizer,
            self.source.config,
            max_new_tokens=self.max_new_tokens if max_new_tokens is None else max_new_tokens,
            stops=self.stops,
            ignore_eos=self.ignore_eos,
            slide=self.slide,
            plain_prompt=self.plain_prompt,
        )

    def load(self, notes: Notes, *, cache_tokens: int) -> ReadyModel:
        """The model, ready; `cache_tokens` is the length of the key/value cache that has to fit beside it."""
        import torch

        from gptcli.runtime import make_ready

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        ready = make_ready(
            self.source,
            device=self.device,
            dtype=self.dtype,
            seed=self.seed,
            cache_tokens=cache_tokens,
            quantize=self.quantize,
            group=self.group,
        )
        if not gc.isenabled():  # `__main__` has turned it off for the start
            gc.freeze()  # what is there by now stays, and need not be looked at
            gc.enable()
        for note in ready.notes:
            notes.note(note)
        if self.speculate == "self":
            _prepare_guesses(ready)
        return ready


def _prepare_guesses(ready: ReadyModel) -> None:
    """Have the int8 copy made at once; raises `UsageError` where none would be any cheaper."""
    from gptcli.engine.switch import Switch

    if not isinstance(ready.engine, Switch) or not ready.engine.guesser.is_cheaper:
        raise UsageError(
            "--speculate self: an int8 copy guesses for float32 weights, in one process on a CPU"
        )
    ready.engine.guesser.prepare(wait=True)
    if not ready.engine.guesser.is_ready:
        raise UsageError(f"--speculate self: this model has no kernels ({ready.engine.describe()})")
