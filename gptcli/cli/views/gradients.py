"""How gradients shrink with depth, without shortcut connections and with them."""

from dataclasses import asdict, dataclass
from typing import Any

from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.table import table
from gptcli.errors import UsageError, count
from gptcli.explain.gradients import GradientRow, gpt_blocks, small_network

TUTORIAL_SIZES = "3,3,3,3,3,1"
PROMPT = "Every effort moves you forward"


@dataclass(frozen=True)
class GradientView:
    """A table of gradients with a row for each layer, and a caption that describes the network."""

    rows: list[GradientRow]
    caption: str
    fault: str | None = None

    @classmethod
    def compute(cls, options: InspectArguments) -> "GradientView":
        """Use the tutorial's small network, or a GPT with random weights if the options describe one."""
        if options.layer_sizes or not (options.preset or options.config or options.prompt):
            sizes = _sizes(options.layer_sizes or TUTORIAL_SIZES)
            caption = f"layers {', '.join(map(str, sizes))}; GELU; seed {options.seed}"
            return cls(small_network(sizes, options.seed), caption)
        from gptcli.config.cost import count_parameters
        from gptcli.system.memory import available_bytes, require_memory

        model = options.random_source()
        prompt = PROMPT if options.prompt is None else options.prompt
        ids = model.tokenizer.encode(prompt)
        if not 2 <= len(ids) <= model.config.context_length:
            raise UsageError(
                f"--prompt of {count(len(ids), 'token')}: the loss needs 2 to {model.config.context_length}"
            )
        require_memory(8 * count_parameters(model.config), available_bytes(), "float32 weights and gradients")
        caption = f"{model.preset or 'config'}; random weights, seed {options.seed}; prompt {prompt!r}"
        return cls(gpt_blocks(model.config, ids, options.seed), caption)

    def as_json(self) -> Any:
        return {"of": self.caption, "layers": [asdict(row) for row in self.rows]}

    def as_text(self) -> str:
        rows = [(row.name, f"{row.without_shortcuts:.6g}", f"{row.with_shortcuts:.6g}") for row in self.rows]
        headers = ("mean absolute gradient of", "without shortcuts", "with shortcuts")
        return f"{self.caption}\n\n" + table(headers, rows, numbers=(1, 2))

    def picture(self, file_format: str) -> bytes:
        from gptcli.plots.gradients import gradient_chart

        return gradient_chart(self.rows, "Gradients with depth", self.caption, file_format)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) < 2 or min(sizes) < 1 or max(sizes) > 10_000 or len(sizes) > 1000:
        raise UsageError(f"--layer-sizes {text!r}: expected two sizes or more, such as {TUTORIAL_SIZES}")
    return sizes
