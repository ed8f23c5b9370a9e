"""The journey of a batch without a prompt: shapes alone, where the model allows it without any weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gptcli import api
from gptcli.cli.render import table
from gptcli.cli.views.counts import title
from gptcli.cli.views.request import Request
from gptcli.errors import UsageError
from gptcli.explain.module_trace import Stop, journey_of
from gptcli.model.init import empty_model
from gptcli.weights.source import ModelSource


@dataclass(frozen=True)
class ShapesView:
    """Every module that a batch passes."""

    heading: str
    stops: list[Stop]
    fault: str | None = None

    @classmethod
    def run(cls, request: Request) -> "ShapesView":
        """Send a batch through a model without memory; a mixture chooses its experts, so it needs weights."""
        source = request.resolve()
        config = source.config
        if request.tokens > config.context_length:
            raise UsageError(f"--tokens {request.tokens}: the context length is {config.context_length}")
        if config.is_moe:
            ready = api.load(ModelSource(source), device="cpu", dtype="float32", seed=request.seed)
            model = ready.model
        else:
            model = empty_model(config)
        ids = [[t % config.vocab_size for t in range(request.tokens)]] * request.batch
        heading = f"{title(source)}\nbatch of {request.batch} × {request.tokens} tokens"
        return cls(heading, journey_of(model, ids))

    def as_json(self) -> Any:
        return {"of": self.heading, "modules": [asdict(stop) for stop in self.stops]}

    def as_text(self) -> str:
        return f"{self.heading}\n\n{shapes_table(self.stops)}"


def shapes_table(stops: Sequence[Stop]) -> str:
    """A row a module, in the order of execution."""
    rows = [
        (s.name, s.kind, str(list(s.enters)), str(list(s.leaves)), f"{s.parameters:,}", f"{s.flops:,}")
        for s in stops
    ]
    return table(("module", "kind", "enters", "leaves", "parameters", "FLOPs"), rows, numbers=(4, 5))
