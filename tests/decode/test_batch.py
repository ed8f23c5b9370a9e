"""Batches decode what each prompt decodes by itself, whatever shares the batch."""

import random

import pytest
import torch

from gptcli.decode.batch import Batch, Row
from gptcli.decode.loop import decode_greedy
from gptcli.errors import NumericsError
from gptcli.model.cache import KVCache
from gptcli.model.ragged_cache import RaggedCache
from tests.models import lively_model, tiny_config

VOCABULARY, CONTEXT = 300, 48
KINDS = [{}, {"feed_forward": "swiglu"}, {"feed_forward": "moe", "n_experts": 4}, {"tie_embeddings": True}]


def some_jobs(n: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """Prompts of 1 token to beyond the context, and budgets."""
    draw = random.Random(seed)
    lengths = (1, 2, 3, 7, 20, 40, CONTEXT - 1, CONTEXT, CONTEXT + 1, 60)
    return [
        ([draw.randrange(VOCABULARY) for _ in range(draw.choice(lengths))], draw.choice((1, 2, 5, 30)))
        for _ in range(n)
    ]


def decoded(model, jobs, size: int, **options) -> list[list[int]]:
    """New ids of each job, decoded `size` at a time; an error ends a job."""
    rows = [Row(list(prompt), budget) for prompt, budget in jobs]
    waiting = list(rows)

    def take(n: int) -> list[Row]:
        taken = waiting[:n]
        del waiting[:n]
        return taken

    for _ in Batch(model, size, **options).steps(take):
        pass
    return [row.ids[len(prompt) :] for row, (prompt, _) in zip(rows, jobs, strict=True)]


def one_by_one(model, jobs) -> list[list[int]]:
    return [[s.token_id for s in decode_greedy(model, prompt, budget)] for prompt, budget in jobs]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_batch_gives_each_prompt_what_it_gets_by_itself(kind, size):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT, **kind))
    jobs = some_jobs(25)
    assert decoded(model, jobs, size) == one_by_one(model, jobs)


def test_without_a_cache_too():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    jobs = some_jobs(8)
    assert decoded(model, jobs, 3, use_cache=False) == one_by_one(model, jobs)


def test_rounding_never_decides_in_a_batch_what_it_does_not_alone(monkeypatch):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    with torch.no_grad():  # every token has a twin, but for rounding
        model.out_head.weight[150:] = model.out_head.weight[:150] * (1 + 1e-7)
    real = RaggedCache.append

    def rounded(cache, layer, keys, values):
        return real(cache, layer, keys * (1 + 2e-7), values * (1 - 2e-7))

    monkeypatch.setattr(RaggedCache, "append", rounded)
    jobs = some_jobs(30, seed=1)
    alone = one_by_one(model, jobs)
    assert decoded(model, jobs, 8) == alone
    monkeypatch.setattr("gptcli.decode.batch.is_near_tie", lambda logits: [False] * len(logits))
    assert decoded(model, jobs, 8) != alone  # the rule is what makes them equal


def test_a_broken_row_is_an_error_and_its_neighbours_and_successors_are_not():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    with torch.no_grad():
        model.tok_emb.weight[7] = float("nan")
    # What the broken one leaves at its later positions lies behind those of the short one that follows it.
    prompts = [[1, 2, 3], [4, 4, 4, 4, 7], [5], [7], [6, 6, 6, 6, 6, 6, 6], [8, 9], [10], [11]]
    rows = [Row(list(prompt), 6) for prompt in prompts]
    waiting, errors = list(rows), []
    for row, step in Batch(model, 2).steps(lambda n: [waiting.pop(0) for _ in waiting[:n]]):
        if isinstance(step, NumericsError):
            errors.append(row)
    assert errors == [row for row, prompt in zip(rows, prompts, strict=True) if 7 in prompt]
    for row, prompt in zip(rows, prompts, strict=True):
        if 7 not in prompt:
            assert row.ids[len(prompt) :] == [s.token_id for s in decode_greedy(model, prompt, 6)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_very_different_lengths_give_no_nan_in_half_precision(dtype):
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT)).to(dtype)
    rows = [Row([3], 20), Row(list(range(45)), 20), Row([5, 6], 20), Row(list(range(30)), 5)]
    waiting = list(rows)
    steps = [step for _, step in Batch(model, 4).steps(lambda n: [waiting.pop() for _ in waiting[:n]])]
    assert not [step for step in steps if isinstance(step, NumericsError)]
    assert len(steps) == 65


def test_an_owner_may_end_a_row_and_its_place_is_taken():
    model = lively_model(tiny_config(vocab_size=VOCABULARY, context_length=CONTEXT))
    rows = [Row([i], 1000) for i in range(6)]
    waiting = list(rows)
    for row, _step in Batch(model, 2).steps(lambda n: [waiting.pop(0) for _ in waiting[:n]]):
        row.ended = len(row.ids) == 4
    assert [len(row.ids) for row in rows] == [4] * 6


def test_rows_of_a_ragged_cache_come_and_go():
    config = tiny_config(context_length=8)
    cache, filled = RaggedCache(config, 3, 8), KVCache(config, 3, 4)
    T = 4
    for layer in range(config.n_layers):
        keys = torch.arange(3.0)[:, None, None, None].expand(3, config.n_heads, T, config.head_dim) + layer
        filled.append(layer, keys, -keys)
    filled.advance(T)
    cache.admit(filled, [1, 4, 2])
    assert (cache.lengths, cache.length) == ([1, 4, 2], 4)
    cache.drop(0)  # the last row moves to its place
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
    cache.truncate(4)
    assert (cache.lengths, cache.length) == ([3, 4], 4)
