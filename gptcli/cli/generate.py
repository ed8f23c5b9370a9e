"""`gptcli generate`: the model's continuation of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable
from gptcli.cli.generate_many import ManyOptions, generate_many
from gptcli.cli.prompt import read_prompt
from gptcli.cli.render import Notes
from gptcli.errors import UsageError
from gptcli.system.signals import unwind
from gptcli.system.torchrun import is_follower, torchrun

if TYPE_CHECKING:
    from gptcli.parallel.process_group import ProcessGroup

DECODING, SAMPLING = "Decoding", "Sampling (any of the first four turns it on)"
MANY = "Many prompts"


def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="The text to continue; - or nothing reads stdin.", show_default=False
        ),
    ] = None,
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = None,
    weights: options.Weights = None,
    pretrained: options.Pretrained = False,
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens", "-n", metavar="N", help="How many tokens at most.", rich_help_panel=DECODING
        ),
    ] = 50,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End before TEXT; repeatable.", rich_help_panel=DECODING),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past <|endoftext|>.", rich_help_panel=DECODING)
    ] = False,
    overflow: Annotated[
        Literal["slide", "stop"],
        typer.Option(
            "--overflow",
            help="Past the context length: slide the window, as the tutorial does, or stop.",
            rich_help_panel=DECODING,
        ),
    ] = "slide",
    plain_prompt: Annotated[
        bool,
        typer.Option(
            "--plain-prompt",
            help="Take <|endoftext|> in the prompt as ordinary text.",
            rich_help_panel=DECODING,
        ),
    ] = False,
    no_kv_cache: Annotated[
        bool,
        typer.Option(
            "--no-kv-cache",
            help="Compute everything again for each token, as the tutorial does.",
            rich_help_panel=DECODING,
        ),
    ] = False,
    speculate: Annotated[
        Literal["auto", "lookup", "self", "off"],
        typer.Option(
            help="Guess, and check several guesses at once: the same text, sooner. lookup takes text that"
            " repeats, self an int8 copy of the model; auto both where they pay.",
            rich_help_panel=DECODING,
        ),
    ] = "auto",
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="At most N guesses at once; else as many as pay.", rich_help_panel=DECODING
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Sample, from logits divided by X; 0 is greedy.", rich_help_panel=SAMPLING
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sample among the N most probable.", rich_help_panel=SAMPLING),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Sample among the fewest that have P together.", rich_help_panel=SAMPLING
        ),
    ] = None,
    num_samples: Annotated[
        int, typer.Option(metavar="N", help="Sample N continuations.", rich_help_panel=SAMPLING)
    ] = 1,
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="The line between them.", rich_help_panel=SAMPLING)
    ] = "---",
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Prompts: .txt, one a line; .jsonl, with prompt, and id and max_new_tokens if you like;"
            " .csv with --column. - is stdin.",
            rich_help_panel=MANY,
        ),
    ] = None,
    input_format: Annotated[
        Literal["txt", "jsonl", "csv"] | None,
        typer.Option(help="What the input is, if its name does not tell.", rich_help_panel=MANY),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of a .csv with the prompts.", rich_help_panel=MANY),
    ] = None,
    batch_size: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="How many are decoded side by side; auto takes 32, on CUDA 128, or what fits.",
            rich_help_panel=MANY,
        ),
    ] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --output that exists.", rich_help_panel=MANY)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write an --output that exists anew.", rich_help_panel=MANY)
    ] = False,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast", help="Stop at a bad line, instead of an error record.", rich_help_panel=MANY
        ),
    ] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantize: Annotated[
        Literal["int8"] | None,
        typer.Option(help="Weights in int8, a scale a row; sums in float.", rich_help_panel=options.RUN),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Threads on a CPU; else all cores.", rich_help_panel=options.RUN),
    ] = None,
    seed: options.Seed = 123,
    no_echo: Annotated[
        bool,
        typer.Option(
            "--no-echo", help="Print the continuation without the prompt.", rich_help_panel=options.OUT
        ),
    ] = False,
    json: options.Json = False,
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs", help="With --json: each token's log-probability.", rich_help_panel=options.OUT
        ),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Seconds, tokens/s and GB/s on stderr.", rich_help_panel=options.OUT),
    ] = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> None:
    """Continue a prompt, greedily: the most probable token, again and again.

    Without --weights a preset's weights are random, drawn from --seed, and its text is noise; but those of
    stories, which is the choice when nothing is chosen, ship with gptcli.

    [bold]Examples[/bold]

    gptcli generate "Hello, I am"

    gptcli generate "Once upon a time" --weights gpt2/model.safetensors -n 100

    echo "Q: What is a GPT? A:" | gptcli generate -w gpt2/ --stop "Q:" --no-echo

    gptcli generate "The king" --temperature 0.8 --num-samples 3 --seed 7

    text=$(gptcli generate "Hi" -w gpt2/ --quiet)

    gptcli generate "Hello, I am" --preset gpt2-small --pretrained

    gptcli generate --input prompts.jsonl --output records.jsonl --resume
    """
    notes = Notes(quiet or is_follower())
    for name, value in (("--draft-tokens", draft_tokens), ("--threads", threads)):
        if value is not None and not 1 <= value <= 1024:
            raise UsageError(f"{name} {value}: expected a number from 1 to 1024")
    _check(max_new_tokens, num_samples, stop or [], is_json=json or input_ is not None, logprobs=logprobs)
    device, dtype, seed = options.check_device(device), options.check_dtype(dtype), options.check_seed(seed)
    asked = ManyOptions(
        input=input_,
        format=input_format,
        column=column,
        batch_size=batch_size,
        output=output,
        resume=resume,
        force=force,
        fail_fast=fail_fast,
        json=json,
        echo=not no_echo,
        separator=separator,
    )
    if not is_follower():  # whose files may lie on another machine
        asked.check(prompt)

    from gptcli.cli.weights_option import asked_weights, local_weights
    from gptcli.weights.source import choose_source, default_note

    weights = local_weights(asked_weights(weights, pretrained, preset), notes)
    source = choose_source(preset, config, set_ or [], weights)
    notes.note(default_note(preset, config, weights))

    from gptcli.cli.decoding import Decoding

    group = _join(device)
    decoding = Decoding(
        source,
        weights,
        device,
        dtype,
        seed,
        max_new_tokens,
        tuple(stop or ()),
        ignore_eos,
        slide=overflow == "slide",
        plain_prompt=plain_prompt,
        use_cache=not no_kv_cache,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_samples=num_samples,
        logprobs=logprobs,
        speculate=speculate,
        draft_tokens=draft_tokens,
        quantize=quantize is not None,
        threads=threads,
        group=group,
    )
    if input_ is not None:
        generate_many(decoding, asked, notes, stats=stats)
    else:
        from gptcli.cli.generate_one import generate_one

        is_first = group is None or group.is_first
        check_writable(output if is_first else None)
        text = read_prompt(prompt or [], notes) if is_first else ""
        generate_one(
            decoding,
            text if group is None else group.broadcast_object(text),
            notes,
            output=output if is_first else None,
            json=json,
            echo=not no_echo,
            separator=separator,
            stats=stats,
        )
    if group is not None:
        group.finish()


def _join(device: str) -> ProcessGroup | None:
    """The processes that torchrun has started to share the model, if it has."""
    if (told := torchrun()) is None:
        return None
    from gptcli.parallel.join import join

    unwind()  # from here on there are others to be told
    return join(told, device)


def _check(
    max_new_tokens: int, num_samples: int, stops: Sequence[str], *, is_json: bool, logprobs: bool
) -> None:
    if num_samples < 1:
        raise UsageError(f"--num-samples {num_samples}: expected 1 or more")
    if max_new_tokens < 0:
        raise UsageError(f"--max-new-tokens {max_new_tokens}: expected 0 or more")
    if "" in stops:
        raise UsageError("--stop '': an empty text would end everything at once")
    if logprobs and not is_json:
        raise UsageError("--logprobs is part of the JSON record; add --json")
