"""Every option of `gptcli generate`, with its help and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gptcli.cli import options
from gptcli.cli.arguments import option
from gptcli.errors import UsageError

if TYPE_CHECKING:  # it imports NumPy
    from gptcli.api import GenerationOptions

DECODING, SAMPLING, MANY = "Decoding", "Sampling (any of the first four turns it on)", "Many prompts"


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(options.ModelArguments):
    """What the user typed after `gptcli generate`."""

    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="The text to continue; - or nothing reads stdin.", show_default=False
        ),
    ] = None

    max_new_tokens: Annotated[
        int,
        option("--max-new-tokens", "-n", metavar="N", help="At most N new tokens.", panel=DECODING),
    ] = 50
    stop: Annotated[
        list[str] | None,
        option("--stop", metavar="TEXT", help="End before TEXT; repeatable.", panel=DECODING),
    ] = None
    ignore_eos: Annotated[bool, option("--ignore-eos", help="Go on past <|endoftext|>.", panel=DECODING)] = (
        False
    )
    overflow: Annotated[
        Literal["slide", "stop"],
        option(
            "--overflow",
            help="Past the context length: slide the window, as the tutorial does, or stop.",
            panel=DECODING,
        ),
    ] = "slide"
    plain_prompt: Annotated[
        bool,
        option("--plain-prompt", help="Take <|endoftext|> in the prompt as ordinary text.", panel=DECODING),
    ] = False
    no_kv_cache: Annotated[
        bool,
        option(
            "--no-kv-cache",
            help="Compute everything again for each token, as the tutorial does.",
            panel=DECODING,
        ),
    ] = False
    speculate: Annotated[
        Literal["auto", "lookup", "self", "off"],
        option(
            "--speculate",
            help="Speculative decoding: verify several draft tokens at once, for the same text sooner."
            " lookup drafts where text repeats itself, self by an int8 copy of the model, auto by both where"
            " they pay.",
            panel=DECODING,
        ),
    ] = "auto"
    draft_tokens: Annotated[
        int | None,
        option(
            "--draft-tokens",
            metavar="N",
            help="At most N draft tokens at once; default: as many as pay.",
            panel=DECODING,
        ),
    ] = None

    temperature: Annotated[
        float | None,
        option(
            "--temperature",
            metavar="X",
            help="Sample, from logits divided by X; 0 is greedy.",
            panel=SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        option("--top-k", metavar="N", help="Sample among the N most probable tokens.", panel=SAMPLING),
    ] = None
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            metavar="P",
            help="Sample among the fewest tokens with a total probability of P.",
            panel=SAMPLING,
        ),
    ] = None
    num_samples: Annotated[
        int, option("--num-samples", metavar="N", help="Sample N continuations.", panel=SAMPLING)
    ] = 1
    separator: Annotated[
        str, option("--separator", metavar="TEXT", help="The line between them.", panel=SAMPLING)
    ] = "---"

    input: Annotated[
        Path | None,
        option(
            "--input",
            "-i",
            metavar="FILE",
            help="Prompts: .txt, one a line; .jsonl, with prompt, and id and max_new_tokens if you like;"
            " .csv with --column. - is stdin.",
            panel=MANY,
        ),
    ] = None
    input_format: Annotated[
        Literal["txt", "jsonl", "csv"] | None,
        option("--input-format", help="The input's format, if its name does not tell.", panel=MANY),
    ] = None
    column: Annotated[
        str | None,
        option("--column", metavar="NAME", help="The column of a .csv with the prompts.", panel=MANY),
    ] = None
    batch_size: Annotated[
        str,
        option(
            "--batch-size",
            metavar="N|auto",
            help="Prompts that are decoded together; auto takes 32, on CUDA 128, or what fits.",
            panel=MANY,
        ),
    ] = "auto"
    resume: Annotated[bool, option("--resume", help="Go on with an --output that exists.", panel=MANY)] = (
        False
    )
    force: Annotated[bool, option("--force", help="Overwrite an --output that exists.", panel=MANY)] = False
    fail_fast: Annotated[
        bool,
        option("--fail-fast", help="Stop at a bad line, instead of an error record.", panel=MANY),
    ] = False

    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    quantize: Annotated[
        Literal["int8"] | None,
        option("--quantize", help="Weights in int8, a scale per row; sums in float.", panel=options.RUN),
    ] = None
    engine: Annotated[
        Literal["auto", "native", "torch"],
        option(
            "--engine",
            help="native: compiled kernels, for dense models on a CPU. torch: the model in PyTorch. auto: the"
            " fastest.",
            panel=options.RUN,
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        option("--threads", metavar="N", help="Threads on a CPU; default: all cores.", panel=options.RUN),
    ] = None
    seed: options.Seed = 123

    no_echo: Annotated[
        bool, option("--no-echo", help="Print the continuation without the prompt.", panel=options.OUT)
    ] = False
    json: options.Json = False
    logprobs: Annotated[
        bool, option("--logprobs", help="With --json: each token's log-probability.", panel=options.OUT)
    ] = False
    stats: Annotated[
        bool, option("--stats", help="Seconds, tokens/s and GB/s on stderr.", panel=options.OUT)
    ] = False
    output: options.Output = None
    quiet: options.Quiet = False

    def generation_options(self) -> "GenerationOptions":
        """Return how to decode; raises `UsageError` for values that cannot be."""
        from gptcli.api import GenerationOptions

        if self.logprobs and not (self.json or self.input is not None):
            raise UsageError("--logprobs is part of the JSON record; add --json")
        return GenerationOptions(
            max_new_tokens=self.max_new_tokens,
            stops=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            overflow=self.overflow,
            plain_prompt=self.plain_prompt,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            num_samples=self.num_samples,
            seed=options.check_seed(self.seed),
            logprobs=self.logprobs,
            use_cache=not self.no_kv_cache,
            speculation=self.speculate,
            draft_tokens=self.draft_tokens,
        )

    def load_options(self) -> dict[str, Any]:
        """Return how to load the model; raises `UsageError` for values that cannot be."""
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"--threads {self.threads}: expected a number from 1 to 1024")
        return {
            "device": options.check_device(self.device),
            "dtype": options.check_dtype(self.dtype),
            "quantize": self.quantize is not None,
            "engine": self.engine,
            "threads": self.threads,
            "seed": options.check_seed(self.seed),
        }
