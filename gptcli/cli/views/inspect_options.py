"""The options of `gptcli inspect` in one record, with the checks that need nothing but them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptcli.config.presets import ResolvedConfig, resolve_options
from gptcli.errors import UsageError


@dataclass(frozen=True)
class InspectOptions:
    """The options of `gptcli inspect`, under their names."""

    preset: str | None
    config: Path | None
    assignments: Sequence[str]
    weights: Path | None
    prompt: str | None
    top_k: int | None
    position: int | None
    all_positions: bool
    layers: bool
    logit_lens: bool
    attention: bool
    layer: int
    head: int | None
    shapes: bool
    batch: int
    tokens: int
    tensor_stats: bool
    check: bool
    diff: Path | None
    gradients: bool
    layer_sizes: str | None
    seed: int
    device: str

    @property
    def looks_inside(self) -> bool:
        """Return whether the options ask for the insides of a forward pass."""
        return self.top_k is not None or any(
            (self.all_positions, self.layers, self.logit_lens, self.attention, self.shapes)
        )

    @property
    def draws(self) -> bool:
        """Return whether `--output` is a picture."""
        return self.attention or self.gradients

    def check_usage(self) -> None:
        """Raise `UsageError` for options that contradict each other, and for numbers that are too small."""
        of_numbers = self.tensor_stats or self.check or self.diff is not None
        if of_numbers and self.weights is None:
            raise UsageError(
                "--tensor-stats, --check and --diff read the numbers of a weights file; give one"
            )
        if sum((of_numbers, self.gradients, self.looks_inside)) > 1 or (
            of_numbers and self.prompt is not None
        ):
            raise UsageError(
                "a file's numbers, gradients, and a look inside a pass are three answers; ask for one"
            )
        if self.looks_inside and self.prompt is None and not self.shapes:
            raise UsageError(
                "--top-k, --all-positions, --layers, --logit-lens and --attention need a --prompt"
            )
        if self.layer_sizes is not None and not self.gradients:
            raise UsageError("--layer-sizes is for --gradients")
        if self.weights is not None and (self.gradients or (self.shapes and self.prompt is None)):
            raise UsageError("that needs no weights: give a --preset or --config, and leave the weights out")
        for name, value in (("--top-k", self.top_k), ("--batch", self.batch), ("--tokens", self.tokens)):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: expected 1 or more")

    def resolve(self) -> ResolvedConfig:
        """Return the config that the options name."""
        return resolve_options(self.preset, self.config, self.assignments)
