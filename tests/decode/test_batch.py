"""Batches: each prompt gets the same tokens as by itself, whatever else is in the batch."""

import random

import pytest
import torch

from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import NumericsError, ResourceError
from gptcli.model.cache import KVCache
from tests.decoding import decode_ids
from tests.models import lively_model, tiny_config

VOCABULARY, CONTEXT = 300, 48
KINDS = [{}, {"feed_forward": "swiglu"}, {"feed_forward": "moe", "n_experts": 4}, {"tie_embeddings": True}]


def some_jobs(n: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """Return prompts, from 1 token to more than the context, each with its number of new tokens."""
    draw = random.Random(seed)
    lengths = (1, 2, 3, 7, 20, 40, CONTEXT - 1, CONTEXT, CONTEXT + 1, 60)
    return [
        ([draw.randrange(VOCABULARY) for _ in range(draw.choice(lengths))], draw.choice((1, 2, 5, 30)))
        for _ in range(n)
    ]


def decoded(model, jobs, size: int, **options) -> list[list[int]]:
    """Return the new ids of each prompt, decoded `size` at a time; an error ends a prompt."""
    rows = [SequenceState(list(prompt), n) for prompt, n in jobs]
    waiting = list(rows)

    def take(n: int) -> list[SequenceState]:
        taken = waiting[:n]
        del waiting[:n]
        return taken

    for _ in BatchDecoder(TorchEngine(model), size, **options).decode(take):
        pass
    return [row.ids[len(prompt) :] for row, (prompt, _) in zip(rows, jobs, strict=True)]


def one_by_one(model, jobs) -> list[list[int]]:
    return [decode_ids(model, prompt, n) for prompt, n in jobs]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_batch_gives_each_prompt_what_it_gets_by_itself(kind, size):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT, **kind))
    jobs = some_jobs(25)
    assert decoded(model, jobs, size) == one_by_one(model, jobs)


def test_a_batch_without_a_cache_gives_the_same():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    jobs = some_jobs(8)
    assert decoded(model, jobs, 3, use_cache=False) == one_by_one(model, jobs)


def test_near_ties_are_decided_alike_in_a_batch_and_alone(monkeypatch):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    with torch.no_grad():  # every token has a twin, up to rounding
        model.out_head.weight[150:] = model.out_head.weight[:150] * (1 + 1e-7)
    real = KVCache.append

    def rounded(cache, layer, keys, values):
        in_batch = len(cache.lengths) > 1
        return real(cache, layer, keys * (1 + 2e-7 * in_batch), values * (1 - 2e-7 * in_batch))

    monkeypatch.setattr(KVCache, "append", rounded)
    jobs = some_jobs(30, seed=1)
    alone = one_by_one(model, jobs)
    assert decoded(model, jobs, 8) == alone
    monkeypatch.setattr(TorchEngine, "near_tie_tolerance", 0.0)
    assert decoded(model, jobs, 8) != alone  # the tolerance is what makes them equal


def test_a_broken_sequence_is_an_error_and_harms_no_other():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    with torch.no_grad():
        model.tok_emb.weight[7] = float("nan")
    # A short prompt takes the row of the longer broken one, which leaves NaN at the later positions.
    prompts = [[1, 2, 3], [4, 4, 4, 4, 7], [5], [7], [6, 6, 6, 6, 6, 6, 6], [8, 9], [10], [11]]
    rows = [SequenceState(list(prompt), 6) for prompt in prompts]
    waiting, errors = list(rows), []
    for row, step in BatchDecoder(TorchEngine(model), 2).decode(
        lambda n: [waiting.pop(0) for _ in waiting[:n]]
    ):
        if isinstance(step, NumericsError):
            errors.append(row)
    assert errors == [row for row, prompt in zip(rows, prompts, strict=True) if 7 in prompt]
    for row, prompt in zip(rows, prompts, strict=True):
        if 7 not in prompt:
            assert row.ids[len(prompt) :] == decode_ids(model, prompt, 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_very_different_lengths_give_no_nan_in_half_precision(dtype):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT)).to(dtype)
    rows = [
        SequenceState([3], 20),
        SequenceState(list(range(45)), 20),
        SequenceState([5, 6], 20),
        SequenceState(list(range(30)), 5),
    ]
    waiting = list(rows)
    steps = [
        step
        for _, step in BatchDecoder(TorchEngine(model), 4).decode(
            lambda n: [waiting.pop() for _ in waiting[:n]]
        )
    ]
    assert not [step for step in steps if isinstance(step, NumericsError)]
    assert len(steps) == 65


def test_a_caller_may_finish_a_sequence_and_another_takes_its_row():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    rows = [SequenceState([i], 1000) for i in range(6)]
    waiting = list(rows)
    for row, _step in BatchDecoder(TorchEngine(model), 2).decode(
        lambda n: [waiting.pop(0) for _ in waiting[:n]]
    ):
        row.finished = len(row.ids) == 4
    assert [len(row.ids) for row in rows] == [4] * 6


def test_sequences_of_different_length_enter_and_leave_a_cache():
    config = tiny_config(context_length=8)
    cache, T = KVCache(config, 3, 8), 4
    cache.clear()
    rows = cache.view(0, 3)
    for layer in range(config.n_layers):
        keys = torch.arange(3.0)[:, None, None, None].expand(3, config.n_heads, T, config.head_dim) + layer
        rows.append(layer, keys, -keys)
    assert (cache.lengths, rows.lengths) == ([], [0, 0, 0])
    cache.lengths = [1, 4, 2]  # the later positions are padding
    assert cache.length == 4
    cache.remove(0)  # the last row moves to its place
    assert (cache.lengths, cache.length) == ([2, 4], 4)
    positions, mask = cache.place(1)
    assert positions.tolist() == [[2], [4]]
    assert mask[:, 0, 0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    new = torch.full((2, config.n_heads, 1, config.head_dim), 9.0)
    keys, values = cache.append(1, new, -new)
    cache.advance(1)
    assert keys[:, 0, :, 0].tolist() == [[3, 3, 9, 3, 0], [2, 2, 2, 2, 9]]
    assert (values == -keys).all()
    assert cache.lengths == [3, 5]
    larger = KVCache(config, 4, 8)
    larger.copy_from(cache)
    assert (larger.lengths, larger.data[:, :, :2, :, :5].equal(cache.data[:, :, :2, :, :5])) == ([3, 5], True)
    cache.truncate(4, row=1)
    assert (cache.lengths, cache.length) == ([3, 4], 4)
    with pytest.raises(ValueError, match="cannot truncate a sequence of 3 tokens to 4"):
        cache.truncate(4)


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("gptcli.engine.torch_engine.available_bytes", lambda: 10_000)
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    with pytest.raises(ResourceError, match="the key/value cache of 9 sequences of 48 tokens"):
        decoded(model, [([1], 100)], 9)
