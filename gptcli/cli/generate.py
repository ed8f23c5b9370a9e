"""`gptcli generate`: the model's continuation of a prompt."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import typer

from gptcli.cli import options
from gptcli.cli.files import check_writable
from gptcli.cli.prompt import read_prompt
from gptcli.cli.render import Answer, Notes, say, to_json
from gptcli.errors import UsageError

DECODING, SAMPLING = "Decoding", "Sampling (any of the first four turns it on)"


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
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
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
    """
    notes = Notes(quiet)
    _check(max_new_tokens, num_samples, stop or [], json, logprobs)
    device, dtype, seed = options.check_device(device), options.check_dtype(dtype), options.check_seed(seed)

    from gptcli.source import choose_source, default_note

    source = choose_source(preset, config, set_ or [], weights)
    notes.note(default_note(preset, config, weights))
    check_writable(output)
    text = read_prompt(prompt or [], notes)

    from gptcli.decode.request import prepare
    from gptcli.tokenizer import Tokenizer

    tokenizer = Tokenizer(source.config)
    request = prepare(
        text,
        tokenizer,
        source.config,
        max_new_tokens=max_new_tokens,
        stops=tuple(stop or ()),
        ignore_eos=ignore_eos,
        slide=overflow == "slide",
        plain_prompt=plain_prompt,
    )
    notes.warn(request.warning())
    notes.note(request.note())

    from gptcli.cli.record import Generation
    from gptcli.decode.sampling import Sampling
    from gptcli.runtime import make_ready

    sampling = Sampling.asked(temperature, top_k, top_p, num_samples)
    ready = make_ready(source, device=device, dtype=dtype, seed=seed, cache_tokens=request.cache_tokens)
    for note in ready.notes:
        notes.note(note)
    generation = Generation(request, ready, source.preset, weights)
    answer = Answer(output)
    for index in range(num_samples):
        choose = sampling.chooser(seed, index)
        pieces = generation.pieces(tokenizer, choose, use_cache=not no_kv_cache, logprobs=logprobs)
        if json:
            deque(pieces, maxlen=0)  # runs to the end, keeps nothing
        else:
            answer.write(f"{separator}\n" if index else "")
            stream_text(answer, "" if no_echo else text, pieces)
    if json:
        answer.write(to_json(generation.record(logprobs=logprobs)) + "\n")
    answer.close()
    notes.note(generation.note())
    if stats:
        say(generation.stats())


def stream_text(answer: Answer, prompt: str, pieces: Iterable[str]) -> None:
    """Prompt and continuation as they come, then a newline; what was printed stays when it is interrupted."""
    try:
        answer.write(prompt)
        for piece in pieces:
            answer.write(piece)
    except BaseException:  # an error, Ctrl-C, SIGTERM
        answer.end_line()
        raise
    answer.write("\n")


def _check(max_new_tokens: int, num_samples: int, stops: Sequence[str], json: bool, logprobs: bool) -> None:
    if num_samples < 1:
        raise UsageError(f"--num-samples {num_samples}: expected 1 or more")
    if max_new_tokens < 0:
        raise UsageError(f"--max-new-tokens {max_new_tokens}: expected 0 or more")
    if "" in stops:
        raise UsageError("--stop '': an empty text would end everything at once")
    if logprobs and not json:
        raise UsageError("--logprobs is part of the JSON record; add --json")
