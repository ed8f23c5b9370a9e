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

DECODING, SAMPLING, MANY = "Decoding", "Sampling (any of the first four options turns it on)", "Many prompts"


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(options.ModelArguments):
    """The arguments of `gptcli generate`."""

    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue; read from stdin if it is - or missing.",
            show_default=False,
        ),
    ] = None

    max_new_tokens: Annotated[
        int,
        option("--max-new-tokens", "-n", metavar="N", help="Generate at most N tokens.", panel=DECODING),
    ] = 50
    stop: Annotated[
        list[str] | None,
        option("--stop", metavar="TEXT", help="Stop before TEXT; repeatable.", panel=DECODING),
    ] = None
    ignore_eos: Annotated[
        bool, option("--ignore-eos", help="Do not stop at <|endoftext|>.", panel=DECODING)
    ] = False
    overflow: Annotated[
        Literal["slide", "stop"],
        option(
            "--overflow",
            help="Past the context length, slide the window, as the tutorial does, or stop.",
            panel=DECODING,
        ),
    ] = "slide"
    plain_prompt: Annotated[
        bool,
        option("--plain-prompt", help="Encode <|endoftext|> in the prompt as ordinary text.", panel=DECODING),
    ] = False
    no_kv_cache: Annotated[
        bool,
        option(
            "--no-kv-cache",
            help="Recompute all keys and values for each token, as the tutorial does.",
            panel=DECODING,
        ),
    ] = False
    speculate: Annotated[
        Literal["auto", "lookup", "self", "off"],
        option(
            "--speculate",
            help="Speculative decoding verifies several draft tokens at once: the same text, faster. lookup"
            " drafts where text repeats itself, self drafts with an int8 copy of the model, auto uses both"
            " where they pay.",
            panel=DECODING,
        ),
    ] = "auto"
    draft_tokens: Annotated[
        int | None,
        option(
            "--draft-tokens",
            metavar="N",
            help="Verify at most N draft tokens at once; default: as many as pay.",
            panel=DECODING,
        ),
    ] = None

    temperature: Annotated[
        float | None,
        option(
            "--temperature",
            metavar="X",
            help="Divide the logits by X before sampling; 0 is greedy.",
            panel=SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        option("--top-k", metavar="N", help="Sample from the N most probable tokens.", panel=SAMPLING),
    ] = None
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            metavar="P",
            help="Sample from the most probable tokens that together reach probability P.",
            panel=SAMPLING,
        ),
    ] = None
    num_samples: Annotated[
        int, option("--num-samples", metavar="N", help="Print N sampled continuations.", panel=SAMPLING)
    ] = 1
    separator: Annotated[
        str, option("--separator", metavar="TEXT", help="The line between continuations.", panel=SAMPLING)
    ] = "---"

    input: Annotated[
        Path | None,
        option(
            "--input",
            "-i",
            metavar="FILE",
            help="A file of prompts: .txt with one per line; .jsonl with prompt and, optionally, id and"
            " max_new_tokens; .csv with --column; or - for stdin.",
            panel=MANY,
        ),
    ] = None
    input_format: Annotated[
        Literal["txt", "jsonl", "csv"] | None,
        option("--input-format", help="The format of --input; default: by its ending.", panel=MANY),
    ] = None
    column: Annotated[
        str | None,
        option(
            "--column", metavar="NAME", help="The column of a .csv file that holds the prompts.", panel=MANY
        ),
    ] = None
    batch_size: Annotated[
        str,
        option(
            "--batch-size",
            metavar="N|auto",
            help="Decode up to N sequences together; auto: 32 on a CPU, 128 on CUDA, or what fits.",
            panel=MANY,
        ),
    ] = "auto"
    resume: Annotated[bool, option("--resume", help="Continue an existing --output.", panel=MANY)] = False
    force: Annotated[bool, option("--force", help="Overwrite an existing --output.", panel=MANY)] = False
    fail_fast: Annotated[
        bool,
        option("--fail-fast", help="Stop at the first error instead of writing an error record.", panel=MANY),
    ] = False

    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    quantize: Annotated[
        Literal["int8"] | None,
        option(
            "--quantize",
            help="Store the weights as int8 with a scale per row; products sum in floating point.",
            panel=options.RUN,
        ),
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
        option("--threads", metavar="N", help="CPU threads; default: all cores.", panel=options.RUN),
    ] = None
    seed: options.Seed = 123

    no_echo: Annotated[
        bool, option("--no-echo", help="Print the continuation without the prompt.", panel=options.OUT)
    ] = False
    json: options.Json = False
    logprobs: Annotated[
        bool,
        option("--logprobs", help="Add each token's log-probability to the JSON record.", panel=options.OUT),
    ] = False
    stats: Annotated[
        bool, option("--stats", help="Print seconds, tokens/s and GB/s on stderr.", panel=options.OUT)
    ] = False
    output: options.Output = None
    quiet: options.Quiet = False

    def generation_options(self) -> "GenerationOptions":
        """Return the options of decoding; raises `UsageError` for invalid values."""
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
        """Return the options of loading the model; raises `UsageError` for invalid values."""
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
