"""Sampling: the distribution of `transformers`' warpers, the same text for the same seed, greedy at 0."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gptcli.decode.sampling import GREEDY, Sampling
from tests.decoding import decode_ids, decode_tokens
from tests.models import lively_model, tiny_config


@given(
    st.integers(0, 10**6),
    st.floats(0.05, 5),
    st.none() | st.integers(1, 60),
    st.none() | st.floats(0.01, 0.999),
    st.sampled_from([0.0, 1.0]) | st.floats(0.001, 0.5),
)
@settings(max_examples=200, deadline=None)
def test_probabilities_are_those_of_transformers_warpers(seed, temperature, top_k, top_p, min_p):
    logits = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 3
    ours = torch.from_numpy(Sampling(temperature, top_k, top_p, min_p).probabilities(logits.numpy()))
    scores = TemperatureLogitsWarper(temperature)(None, logits[None].clone())
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    scores = MinPLogitsWarper(min_p)(None, scores)
    torch.testing.assert_close(ours, scores[0].softmax(-1).double(), atol=1e-5, rtol=1e-4)
    assert float(ours.sum()) == pytest.approx(1, abs=1e-5)


def test_the_nucleus_is_the_fewest_tokens_that_reach_p():
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    kept = [
        int((Sampling(top_p=p).probabilities(logits.numpy()) > 0).sum())
        for p in (0.01, 0.49, 0.51, 0.76, 0.91, 1.0)
    ]
    assert kept == [1, 1, 2, 3, 4, 4]


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    sampler = Sampling(1.0).sampler(seed=5, index=0)
    counts = (
        torch.bincount(torch.tensor([sampler.sample(logits.numpy()) for _ in range(4000)]), minlength=3)
        / 4000
    )
    torch.testing.assert_close(counts, logits.exp(), atol=0.03, rtol=0)


class TestDecoding:
    def test_temperature_zero_is_greedy(self):
        assert Sampling(0.0, top_k=3, top_p=0.5).sampler(1, 0) is GREEDY

    def test_top_1_is_greedy_too(self):
        model = lively_model(tiny_config(vocab_size=300))
        greedy = decode_ids(model, [1, 2], 12)
        drawn = decode_tokens(model, [1, 2], 12, Sampling(top_k=1).sampler(9, 0))
        assert [step.token_id for step in drawn] == greedy

    def test_a_seed_and_an_index_decide_the_text_with_a_cache_or_without(self):
        model = lively_model(tiny_config(vocab_size=300))

        def ids(seed: int, index: int, use_cache: bool = True) -> list[int]:
            sampler = Sampling(1.5).sampler(seed, index)
            return decode_ids(model, [1, 2], 14, sampler=sampler, use_cache=use_cache)

        assert ids(1, 0) == ids(1, 0) == ids(1, 0, use_cache=False)
        assert len({tuple(ids(seed, index)) for seed in (1, 2) for index in (0, 1)}) == 4


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_0_and_minus_1_are_no_limit_and_turn_sampling_on(top_k, cli, tiny_config_file):
    logits = np.random.default_rng(0).standard_normal(50, dtype=np.float32)
    np.testing.assert_array_equal(
        Sampling(top_k=top_k).probabilities(logits), Sampling().probabilities(logits)
    )
    arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 9, "-q")
    assert (
        cli(*arguments, "--top-k", top_k).out
        == cli(*arguments, "--temperature", 1).out
        != cli(*arguments).out
    )


def test_min_p_turns_sampling_on(cli, tiny_config_file):
    arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 9, "-q")
    assert cli(*arguments, "--min-p", 0).out == cli(*arguments, "--temperature", 1).out
    assert cli(*arguments, "--min-p", 1).out == cli(*arguments).out


class TestCommand:
    def test_several_samples_are_printed_with_a_line_between(self, cli, tiny_config_file):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 3, "--num-samples", 3, "-q")
        out = cli(*arguments).out
        parts = out.removesuffix("\n").split("\n---\n")
        assert len(parts) == 3
        assert all(part.startswith("Hi") for part in parts)
        assert len(set(parts)) == 3
        assert cli(*arguments).out == out
        assert cli(*arguments, "--seed", 7).out != out
        assert "\n==\n" in cli(*arguments, "--separator", "==").out

    def test_json_lists_several_samples_and_keeps_the_form_of_one(self, cli, tiny_config_file):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 3, "-q", "--json", "--logprobs")
        record = json.loads(cli(*arguments, "--num-samples", 2).out)
        assert [len(sample["completion_ids"]) for sample in record["samples"]] == [3, 3]
        assert all(len(sample["logprobs"]) == 3 for sample in record["samples"])
        one = json.loads(cli(*arguments, "--temperature", 0.7).out)
        assert "samples" not in one
        assert (
            one["completion_ids"] == json.loads(cli(*arguments, "--temperature", 0.7).out)["completion_ids"]
        )

    def test_the_log_probabilities_are_natural_before_any_temperature(self, cli, tiny_config_file):
        arguments = (
            "generate",
            "Hi",
            "-c",
            tiny_config_file,
            "-n",
            1,
            "-q",
            "--json",
            "--logprobs",
            "--top-k",
            1,
        )
        plain = json.loads(cli(*arguments).out)
        sharp = json.loads(cli(*arguments, "--temperature", 0.1).out)
        assert plain["logprobs"] == sharp["logprobs"]

    def test_what_does_not_sample_is_greedy_whatever_the_seed(self, cli, tmp_path):
        from tests.models import save_huggingface

        folder = save_huggingface(lively_model(tiny_config(vocab_size=50257)), tmp_path)
        arguments = ("generate", "Hi", "-w", folder, "-n", 6, "-q")
        greedy = cli(*arguments).out
        assert cli(*arguments, "--seed", 5).out == greedy
        assert cli(*arguments, "--temperature", 0).out == greedy
        assert cli(*arguments, "--temperature", 3, "--seed", 5).out != greedy

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--temperature", "-1"], "--temperature -1: expected 0 (greedy) or a number above 0"),
            (["--temperature", "nan"], "--temperature nan"),
            (["--temperature", "inf"], "--temperature inf"),
            (["--top-p", "0"], "--top-p 0: expected a number above 0"),
            (["--top-p", "1.5"], "--top-p 1.5"),
            (["--top-p", "nan"], "--top-p nan"),
            (["--num-samples", "0"], "--num-samples 0: expected 1 or more"),
        ],
    )
    def test_invalid_numbers_are_wrong_usage(self, cli, tiny_config_file, arguments, message):
        result = cli("generate", "Hi", "-c", tiny_config_file, *arguments)
        assert (result.status, result.out) == (2, "")
        assert message in result.err
