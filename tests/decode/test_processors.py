"""Logits processors: those of transformers and OpenAI's formula, in every way to decode."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.decode.near_ties import CheckedLogits
from gptcli.decode.options import GenerationOptions
from gptcli.decode.processors import BannedSequences, LogitsProcessors
from gptcli.decode.sampling import GREEDY, Sampling
from gptcli.decode.select import sample_token
from gptcli.decode.speculation import Speculator
from gptcli.engine.native.model import NativeModel
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import NumericsError
from tests.decoding import decode_ids, decode_tokens
from tests.engine.models import CONTEXT, VOCABULARY, config, native_engine
from tests.models import lively_model, scripted_model, tiny_config

BANNED = ((7,), (3, 5), (3, 6), (9, 9, 4), (1, 2, 3, 4, 5))
CASES = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition wanted": {"repetition_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": -0.4},
    "1-gram": {"no_repeat_ngram": 1},
    "3-gram": {"no_repeat_ngram": 3},
    "bans": {"bans": ("x",)},
    "all": {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "no_repeat_ngram": 2,
        "bans": ("x",),
    },
}


def processors(changes, prompt, vocab_size=VOCABULARY) -> LogitsProcessors:
    options = GenerationOptions(**changes)
    return LogitsProcessors.of(options, BANNED if options.bans else (), len(prompt), vocab_size)


def reference(changes, n_prompt: int, ids: list[int], logits: np.ndarray) -> np.ndarray:
    """Return the logits [V] by transformers' processors and OpenAI's formula, from the whole text."""
    options = GenerationOptions(**changes)
    scores, text = torch.from_numpy(logits.astype(np.float64))[None].clone(), torch.tensor([ids])
    if options.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(options.repetition_penalty)(text, scores)
    for token, n in Counter(ids[n_prompt:]).items():  # mu[j] - c[j] * alpha_frequency - (c[j] > 0) * …
        scores[0, token] -= n * options.frequency_penalty + (n > 0) * options.presence_penalty
    if options.no_repeat_ngram:
        scores = NoRepeatNGramLogitsProcessor(options.no_repeat_ngram)(text, scores)
    if options.bans:
        scores = NoBadWordsLogitsProcessor([list(sequence) for sequence in BANNED])(text, scores)
    return scores[0].numpy()


def reference_ids(model, prompt, n: int, changes) -> list[int]:
    """Decode greedily by whole passes in float64, with the reference's processors."""
    double, ids = TorchEngine(model), list(prompt)
    for _ in range(n):
        logits = double.exact_logits(ids[-CONTEXT:])
        ids.append(int(reference(changes, len(prompt), ids, logits).argmax()))
    return ids[len(prompt) :]


def some_prompts(n: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """Return prompts of a few different tokens, some longer than the context, each with its new tokens."""
    draw = random.Random(seed)
    lengths, counts = (1, 2, 5, 20, CONTEXT - 3, CONTEXT + 2), (1, 3, 12, 30)
    return [
        ([draw.choice((1, 2, 3, 9)) for _ in range(draw.choice(lengths))], draw.choice(counts))
        for _ in range(n)
    ]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_each_changes_the_logits_as_transformers_does_while_a_text_grows(changes):
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 10, 60).tolist()
    for n_prompt in (1, 2, 7):
        process = processors(changes, ids[:n_prompt], 12)
        changed = 0
        for end in range(n_prompt, len(ids), 1 + n_prompt % 2):  # one or two tokens further each time
            logits = draw.standard_normal(12).astype(np.float32) * 4
            expected = reference(changes, n_prompt, ids[:end], logits)
            if expected.max() == -math.inf:
                with pytest.raises(NumericsError, match=f"no token is left after {end} token"):
                    process(ids[:end], logits)
                continue
            ours = process(ids[:end], logits)
            np.testing.assert_allclose(ours, expected, rtol=1e-14)
            np.testing.assert_array_equal(process(ids[:end], logits), ours)  # asking twice counts once
            changed += not np.array_equal(ours, logits)
        assert changed


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
class TestDecoding:
    def test_the_ids_are_those_of_float64_with_a_cache_and_without(self, changes):
        model = lively_model(config())
        engine = native_engine(model)
        for prompt, n in some_prompts(5):
            expected = reference_ids(model, prompt, n, changes)
            for each in (engine, TorchEngine(model)):
                for use_cache in (True, False):
                    process = processors(changes, prompt)
                    ids = decode_ids(model, prompt, n, engine=each, processors=process, use_cache=use_cache)
                    assert ids == expected

    def test_drafts_are_verified_behind_the_processors(self, changes):
        model = lively_model(config(), 1)
        engine = native_engine(model)
        prompt = [1, 2, 9] * 6
        expected = reference_ids(model, prompt, 80, changes)  # past the context, and with an int8 head

        class Right(Speculator):
            def propose(self, ids, n_most, _cache, _tokens_left):
                return [*prompt, *expected][len(ids) : len(ids) + n_most]

        for speculator in (Speculator(), Right(), None):
            process = processors(changes, prompt)
            options = {"engine": engine, "processors": process, "speculator": speculator}
            assert decode_ids(model, prompt, 80, **options) == expected

    @pytest.mark.parametrize("size", [1, 3])
    def test_a_batch_gives_each_prompt_what_it_gets_by_itself(self, changes, size):
        model = lively_model(config())
        jobs, native = some_prompts(7, seed=1), native_engine(model)
        decode_ids(model, [1], 80, engine=native)  # it has an int8 head from here on
        for engine in (native, TorchEngine(model)):
            rows = [
                SequenceState(
                    list(prompt),
                    n,
                    GREEDY,
                    processors(changes, prompt),
                    speculator=Speculator(measures=False),
                )
                for prompt, n in jobs
            ]
            waiting = list(rows)
            for _ in BatchDecoder(engine, size).decode(lambda n, w=waiting: [w.pop(0) for _each in w[:n]]):
                pass
            for row, (prompt, n) in zip(rows, jobs, strict=True):
                assert row.ids[len(prompt) :] == reference_ids(model, prompt, n, changes)


def test_near_ties_are_judged_and_decided_behind_the_processors(monkeypatch):
    """Ban each token's larger twin: the next two candidates are twins as well, closer than the error."""
    model = lively_model(config())
    with torch.no_grad():
        for copy in (1, 2):
            first = 40 * copy
            model.out_head.weight[first : first + 40] = model.out_head.weight[:40] * (1 + copy * 2e-6)
    changes = {"repetition_penalty": 3.0, "no_repeat_ngram": 1}
    engine = native_engine(model)
    expected = {first: reference_ids(model, [first], 40, changes) for first in range(6)}
    real, draw = NativeModel.forward, np.random.default_rng(0)

    def rounded(self, ids, cache, **options):
        logits = real(self, ids, cache, **options)
        noise = draw.standard_normal(logits.shape, dtype=np.float32)
        return logits if logits.dtype == np.float64 else logits * (1 + np.float32(1e-6) * noise)

    monkeypatch.setattr(NativeModel, "forward", rounded)
    differed = 0
    for first, ids in expected.items():
        options = {"engine": engine, "speculator": Speculator()}
        assert decode_ids(model, [first], 40, processors=processors(changes, [first]), **options) == ids
        with monkeypatch.context() as patch:
            patch.setattr(engine, "near_tie_tolerance", 0.0)
            differed += (
                decode_ids(model, [first], 40, processors=processors(changes, [first]), **options) != ids
            )
    assert differed


def test_a_near_tie_that_only_a_ban_uncovers_is_decided_in_float64():
    class Engine:
        config = config()

        def exact_logits(self, ids, _cache, _row):
            assert ids == [1]
            return np.array([9, 3 + 1e-9, 3, 0.0])

    def chosen(rounding: float) -> int:
        process = LogitsProcessors([BannedSequences([[0]])])
        logits = np.array([9, 3, 3.0000005, 0], np.float32)
        checked = CheckedLogits(logits, is_finite=True, rounding=rounding)
        return sample_token(Engine(), [1], checked, GREEDY, process, logprobs=False).token_id

    assert (chosen(1e-5), chosen(0.0)) == (1, 2)


def test_a_penalty_widens_the_near_ties_as_it_widens_the_error():
    process = processors({"repetition_penalty": 4.0, "frequency_penalty": 1.0}, [1])
    assert process.gain == 4
    assert processors({"repetition_penalty": 0.25}, [1]).gain == 4


def test_the_log_probabilities_are_the_models_own():
    model = lively_model(config())
    prompt = [1, 2, 3]
    options = {"processors": processors({"no_repeat_ngram": 1}, prompt), "logprobs": True}
    ids = list(prompt)
    for engine in (native_engine(model), TorchEngine(model)):
        options["processors"] = processors({"no_repeat_ngram": 1}, prompt)
        ids = list(prompt)
        for token in decode_tokens(model, prompt, 20, engine=engine, **options):
            logits = torch.from_numpy(TorchEngine(model).exact_logits(ids))
            assert token.logprob == pytest.approx(float(logits.log_softmax(-1)[token.token_id]), abs=1e-4)
            ids.append(token.token_id)


def test_sampling_draws_from_the_changed_distribution():
    model = lively_model(config())
    prompt, sampling = [1, 2], Sampling(5.0, top_k=0)
    drawn = decode_ids(
        model, prompt, 60, sampling.sampler(1, 0), processors=processors(CASES["1-gram"], prompt)
    )
    assert len({*prompt, *drawn}) == 62
    assert len(set(decode_ids(model, prompt, 60, sampling.sampler(1, 0)))) < 60


class TestCommand:
    def test_the_stories_model_stops_looping(self, cli):
        base = ("generate", "Once upon a time", "-n", 90, "-q", "--no-echo")
        looping = cli(*base).out
        assert looping.count("so beautiful that she could not bear") == 2
        for options in (("--repetition-penalty", 1.2), ("--no-repeat-ngram", 3), ("--frequency-penalty", 1)):
            words = cli(*base, *options).out.split()
            windows = Counter(zip(*(words[i:] for i in range(6)), strict=False))
            assert max(windows.values()) == 1, options

    def test_a_batch_and_a_single_prompt_give_the_same_record(self, cli, tmp_path):
        prompts = tmp_path / "p.txt"
        prompts.write_text("Once upon a time\nThe King said\nThe King said to the King\n")
        options = ("-n", 30, "-q", "--no-repeat-ngram", 2, "--presence-penalty", 0.5, "--ban", "King")
        records = [
            json.loads(line)
            for line in cli("generate", "-i", prompts, *options, "--json").out.split("\n")[:-1]
        ]
        assert len(records) == 3
        for record in records:
            alone = json.loads(cli("generate", record["prompt"], *options, "--json").out)
            assert record["completion_ids"] == alone["completion_ids"]
            assert "King" not in alone["completion"]
            assert alone["completion"] == cli("generate", record["prompt"], *options, "--no-echo").out[:-1]

    def test_samples_each_count_their_own_tokens(self, cli):
        options = ("-n", 20, "-q", "--json", "--no-repeat-ngram", 1, "--min-p", 0.05, "--num-samples", 3)
        samples = json.loads(cli("generate", "Once", *options).out)["samples"]
        assert len({tuple(sample["completion_ids"]) for sample in samples}) == 3
        for sample in samples:
            assert len(set(sample["completion_ids"])) == 20

    def test_a_ban_covers_a_word_with_a_space_before_it_and_several_tokens(self, cli, tmp_path):
        from tests.models import save_tutorial

        def text(*bans: str) -> str:
            options = [word for ban in bans for word in ("--ban", ban)]
            return cli("generate", "Once", "-w", folder, "-n", 3, "-q", "--no-echo", *options).out[:-1]

        # Once -> " upon" -> " a" -> " time"; behind each a weaker candidate, "!" (0).
        script = {7454: 2402, 2402: 257, 257: 640}
        folder = save_tutorial(scripted_model(script), tmp_path)
        assert text() == " upon a time"
        assert text("upon").startswith("!")
        assert text(" upon").startswith("!")
        assert text(" a time") == " upon a!"
        assert text("Once upon").startswith("!")  # the prompt counts
        assert text("time", "a") == " upon!!"
        assert text("tim") == " upon a time"  # other tokens

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--repetition-penalty", "0"], "--repetition-penalty 0: expected a number from 0.01 to 100"),
            (["--repetition-penalty", "nan"], "--repetition-penalty nan"),
            (["--repetition-penalty", "100.0000001"], "--repetition-penalty 100.0000001: expected"),
            (["--frequency-penalty", "2.5"], "--frequency-penalty 2.5: expected a number from -2 to 2"),
            (["--presence-penalty", "nan"], "--presence-penalty nan: expected a number from -2 to 2"),
            (["--presence-penalty", "-inf"], "--presence-penalty -inf"),
            (["--no-repeat-ngram", "-1"], "--no-repeat-ngram -1: expected 1 or more"),
            (["--min-p", "1.0000001"], "--min-p 1.0000001: expected a number from 0 to 1"),
            (["--min-p", "-0.1"], "--min-p -0.1"),
            (["--top-p", "1.0000001"], "--top-p 1.0000001: expected a number above 0"),
            (["--top-k", "-2"], "--top-k -2: expected 1 or more, or 0 or -1 for no limit"),
            (["--ban", ""], "--ban '': expected a text that is not empty"),
        ],
    )
    def test_invalid_values_are_wrong_usage(self, cli, tiny_config_file, arguments, message):
        result = cli("generate", "Hi", "-c", tiny_config_file, *arguments)
        assert (result.status, result.out) == (2, "")
        assert message in result.err

    def test_a_text_that_the_vocabulary_lacks_cannot_be_banned(self, cli, tmp_path):
        from tests.models import tiny_values, write_yaml

        small = write_yaml(tmp_path / "c.yaml", tiny_values(vocab_size=1000))
        result = cli("generate", "a", "-c", small, "--ban", "xylophone")
        assert (result.status, result.out) == (2, "")
        assert "--ban 'xylophone': this model's vocabulary does not have its tokens" in result.err
        assert cli("generate", "a", "-c", small, "--ban", "b", "-n", 2, "-q").status == 0
        prompts = tmp_path / "p.txt"
        prompts.write_text("a\nb\n")
        result = cli("generate", "-i", prompts, "-c", small, "--ban", "xylophone")
        assert (result.status, result.out) == (2, "")
        assert result.err.count("--ban 'xylophone'") == 1

    def test_the_end_of_a_vocabulary_is_one_line(self, cli, tmp_path):
        from tests.models import save_tutorial

        folder = save_tutorial(lively_model(tiny_config(vocab_size=5, context_length=32)), tmp_path)
        result = cli("generate", "!", "-w", folder, "--no-repeat-ngram", 1, "-q", "-n", 9)
        assert result.status == 1
        assert "error: no token is left after 5 tokens: --ban and --no-repeat-ngram ban all" in result.err
