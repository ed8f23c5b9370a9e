"""The module trace of a batch without a prompt: shapes alone, in no memory where the model allows it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.table import table
from gptcli.cli.views.counts import title
from gptcli.config.cost import count_parameters
from gptcli.errors import UsageError, count
from gptcli.explain.module_trace import ModuleCall, trace_modules_of_config
from gptcli.system.memory import available_bytes, require_memory


@dataclass(frozen=True)
class ShapesView:
    """The calls of every module for one batch."""

    heading: str
    calls: list[ModuleCall]
    fault: str | None = None

    @classmethod
    def run(cls, options: InspectArguments) -> "ShapesView":
        """Trace a batch through the model of a config; only a mixture of experts needs weights for that."""
        source = options.resolve()
        config = source.config
        if options.tokens > config.context_length:
            raise UsageError(f"--tokens {options.tokens}: the context length is {config.context_length}")
        if config.is_moe:
            require_memory(4 * count_parameters(config), available_bytes(), "float32 weights")
        ids = [[t % config.vocab_size for t in range(options.tokens)]] * options.batch
        heading = f"{title(source)}\nbatch of {options.batch} × {count(options.tokens, 'token')}"
        return cls(heading, trace_modules_of_config(config, ids, options.seed))

    def as_json(self) -> Any:
        return {"of": self.heading, "modules": [asdict(call) for call in self.calls]}

    def as_text(self) -> str:
        return f"{self.heading}\n\n{shapes_table(self.calls)}"


def shapes_table(calls: Sequence[ModuleCall]) -> str:
    """Return a table with one row per call, in the order of execution."""
    rows = [
        (c.name, c.kind, str(list(c.enters)), str(list(c.leaves)), f"{c.parameters:,}", f"{c.flops:,}")
        for c in calls
    ]
    return table(("module", "kind", "enters", "leaves", "parameters", "FLOPs"), rows, numbers=(4, 5))
