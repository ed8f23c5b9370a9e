"""Every option of `gptcli generate`, with its help and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gptcli.cli import loading, options
from gptcli.cli.arguments import option, parse_path
from gptcli.errors import UsageError

if TYPE_CHECKING:  # it imports NumPy
    from gptcli.api import GenerationOptions

DECODING, MANY = "Decoding", "Many prompts"
SAMPLING = "Sampling (any of the first five options turns it on)"
REPETITION = "Repetition (greedy or sampled)"


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
        int, option("--max-new-tokens -n", "Generate at most N tokens.", DECODING, "N")
    ] = 50
    stop: Annotated[list[str] | None, option("--stop", "Stop before TEXT; repeatable.", DECODING, "TEXT")] = (
        None
    )
    ignore_eos: Annotated[bool, option("--ignore-eos", "Do not stop at <|endoftext|>.", DECODING)] = False
    overflow: Annotated[
        Literal["slide", "stop"],
        option(
            "--overflow",
            "Past the context length, slide the window, as the tutorial does, or stop.",
            DECODING,
        ),
    ] = "slide"
    plain_prompt: Annotated[
        bool, option("--plain-prompt", "Encode <|endoftext|> in the prompt as ordinary text.", DECODING)
    ] = False
    no_kv_cache: Annotated[
        bool,
        option(
            "--no-kv-cache", "Recompute all keys and values for each token, as the tutorial does.", DECODING
        ),
    ] = False
    speculate: Annotated[
        Literal["auto", "lookup", "self", "off"],
        option(
            "--speculate",
            "Speculative decoding verifies several draft tokens at once: the same text, faster. lookup"
            " drafts where text repeats itself, self drafts with an int8 copy of the model, auto uses both"
            " where they pay.",
            DECODING,
        ),
    ] = "auto"
    draft_tokens: Annotated[
        int | None,
        option(
            "--draft-tokens", "Verify at most N draft tokens at once; default: as many as pay.", DECODING, "N"
        ),
    ] = None

    temperature: Annotated[
        float | None,
        option("--temperature", "Divide the logits by X before sampling; 0 is greedy.", SAMPLING, "X"),
    ] = None
    top_k: Annotated[
        int | None,
        option("--top-k", "Sample from the N most probable tokens; 0 or -1: from all.", SAMPLING, "N"),
    ] = None
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            "Sample from the most probable tokens that together reach probability P.",
            SAMPLING,
            "P",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        option(
            "--min-p",
            "Sample from the tokens at least P times as probable as the most probable one.",
            SAMPLING,
            "P",
        ),
    ] = None
    num_samples: Annotated[int, option("--num-samples", "Print N sampled continuations.", SAMPLING, "N")] = 1
    separator: Annotated[str, option("--separator", "The line between continuations.", SAMPLING, "TEXT")] = (
        "---"
    )

    repetition_penalty: Annotated[
        float,
        option(
            "--repetition-penalty",
            "Divide the logits of all tokens so far by X, multiply negative ones; 1.1 to 1.3 is usual.",
            REPETITION,
            "X",
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        option(
            "--frequency-penalty",
            "Lower a generated token's logit by X for each time it was generated.",
            REPETITION,
            "X",
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        option("--presence-penalty", "Lower every generated token's logit by X, once.", REPETITION, "X"),
    ] = 0.0
    no_repeat_ngram: Annotated[
        int, option("--no-repeat-ngram", "Let no N tokens in a row occur twice; 0: no rule.", REPETITION, "N")
    ] = 0
    ban: Annotated[
        list[str] | None,
        option(
            "--ban",
            "Never generate the tokens of TEXT, with or without a space before it; repeatable.",
            REPETITION,
            "TEXT",
        ),
    ] = None

    input: Annotated[
        Path | None,
        option(
            "--input -i",
            "A file of prompts: .txt with one per line; .jsonl with prompt and, optionally, id and"
            " max_new_tokens; .csv with --column; or - for stdin.",
            MANY,
            "FILE",
            parser=parse_path,
        ),
    ] = None
    input_format: Annotated[
        Literal["txt", "jsonl", "csv"] | None,
        option("--input-format", "The format of --input; default: by its ending.", MANY),
    ] = None
    column: Annotated[
        str | None, option("--column", "The column of a .csv file that holds the prompts.", MANY, "NAME")
    ] = None
    batch_size: Annotated[
        str,
        option(
            "--batch-size",
            "Decode up to N sequences together; auto: 32 on a CPU, 128 on CUDA, or what fits.",
            MANY,
            "N|auto",
        ),
    ] = "auto"
    resume: Annotated[bool, option("--resume", "Continue an existing --output of the same run.", MANY)] = (
        False
    )
    force: Annotated[
        bool, option("--force", "Overwrite an existing --output; with --resume, continue any.", MANY)
    ] = False
    fail_fast: Annotated[
        bool, option("--fail-fast", "Stop at the first error instead of writing an error record.", MANY)
    ] = False

    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    quantize: loading.Quantize = None
    engine: loading.Engine = "auto"
    kernels: Annotated[  # for tests: this processor would select the fastest
        str | None,
        option(
            "--kernels", "Use the native kernels of one instruction set.", options.RUN, "NAME", hidden=True
        ),
    ] = None
    threads: loading.Threads = None
    seed: options.Seed = 123

    no_echo: Annotated[
        bool, option("--no-echo", "Print the continuation without the prompt.", options.OUT)
    ] = False
    json: options.Json = False
    logprobs: Annotated[
        bool, option("--logprobs", "Add each token's log-probability to the JSON record.", options.OUT)
    ] = False
    stats: Annotated[bool, option("--stats", "Print seconds, tokens/s and GB/s on stderr.", options.OUT)] = (
        False
    )
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
            min_p=self.min_p,
            num_samples=self.num_samples,
            seed=options.check_seed(self.seed),
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            no_repeat_ngram=self.no_repeat_ngram,
            bans=tuple(self.ban or ()),
            logprobs=self.logprobs,
            use_cache=not self.no_kv_cache,
            speculation=self.speculate,
            draft_tokens=self.draft_tokens,
        )

    def load_options(self) -> dict[str, Any]:
        """Return the options of loading the model; raises `UsageError` for invalid values."""
        chosen = loading.load_options(
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            engine=self.engine,
            threads=self.threads,
            seed=self.seed,
        )
        return chosen | {"kernels": self.kernels}
