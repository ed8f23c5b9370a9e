"""A prompt by the engine: the model's logits and cache, whatever its size and wherever it begins."""

import threading

import pytest
import torch

from gptcli.decode.speculation import Speculator
from gptcli.engine import cpu
from gptcli.engine import switch as switch_module
from gptcli.engine.cpu import MAX_TOKENS, CpuEngine
from gptcli.engine.onednn import use_onednn
from gptcli.engine.switch import Switch
from gptcli.model.cache import KVCache
from gptcli.model.int8 import quantize_int8
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from tests.decoding import decode_ids
from tests.models import lively_model, save_huggingface, tiny_config

VOCABULARY, CONTEXT = 120, 90


def config(**changes):
    return tiny_config(**{"vocab_size": VOCABULARY, "context_length": CONTEXT} | changes)


def engine_for(model, n_threads: int = 2) -> CpuEngine:
    engine = CpuEngine(model, n_threads)
    engine.warm_up()
    engine.prepare_prefill()
    return engine


def assert_equal_to_the_model(model, engine: CpuEngine) -> None:
    """Prompts in one piece, and behind what came before, to the very end of the context."""
    ids = torch.randint(0, VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(0))
    for sizes in ((1,), (9,), (33, 17), (8, 64, 18), (CONTEXT,)):
        ours, theirs = KVCache(model.config, 1, CONTEXT), KVCache(model.config, 1, CONTEXT)
        for size in sizes:
            new = ids[ours.length : ours.length + size]
            with torch.inference_mode():
                logits = engine.prefill(new.tolist(), ours)
                expected = model(new[None], theirs)[0, -1:]
            assert logits.shape == (1, VOCABULARY)
            assert (logits - expected).abs().max() <= 2e-6 * expected.abs().max()
        end = sum(sizes)
        assert ours.length == theirs.length == end
        assert (ours.data[..., :end, :] - theirs.data[..., :end, :]).abs().max() < 1e-5


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"n_heads": 1}, {"emb_dim": 96, "n_heads": 2}, {"emb_dim": 35, "n_heads": 5}], ids=str
)
def test_is_the_models_own(monkeypatch, changes, n_threads):
    model = lively_model(config(**changes))
    assert_equal_to_the_model(model, engine_for(model, n_threads))
    monkeypatch.setattr(cpu, "PREFILL_TOKENS", 7)
    assert_equal_to_the_model(model, engine_for(model, n_threads))


@pytest.mark.parametrize("has_onednn", [True, False])
def test_on_the_columns_of_a_file_and_in_int8(tmp_path, has_onednn):
    folder = save_huggingface(lively_model(config()), tmp_path)
    from_file = load_weights(plan_load(folder, []), device="cpu", dtype=torch.float32).model
    for model in (from_file, quantize_int8(lively_model(config()))):
        if has_onednn:
            use_onednn(model)
        assert_equal_to_the_model(model, engine_for(model))


def test_is_left_to_pytorch_in_half_precision():
    for dtype in (torch.bfloat16, torch.float16):
        assert not engine_for(lively_model(config()).to(dtype)).can_prefill


def test_gives_the_logits_that_greedy_decoding_looks_at():
    model = lively_model(config())
    engine = engine_for(model)
    engine.build_quick_head()
    for seed in range(30):
        ids = torch.randint(0, VOCABULARY, (20,), generator=torch.Generator().manual_seed(seed)).tolist()
        with torch.inference_mode():
            logits = engine.prefill(ids, KVCache(model.config, 1, 20), largest_only=True)
            expected = model(torch.tensor([ids]))[0, -1]
        assert logits[0].argmax() == expected.argmax()
        assert abs(logits[0].max() - expected.max()) <= 2e-6 * expected.abs().max()


def test_decoding_after_it_gives_the_same_ids_from_the_second_long_prompt_on(monkeypatch):
    monkeypatch.setattr(switch_module, "PROMPT_TOKENS", MAX_TOKENS + 2)
    model = lively_model(config())
    switch = Switch(model)
    switch.prepare(wait=True)
    engine, taken, may_begin = switch.engine, [], threading.Event()
    prepare, prefill = engine.prepare_prefill, engine.prefill
    monkeypatch.setattr(engine, "prepare_prefill", lambda: (may_begin.wait(), prepare()))

    def counted(ids, *rest, **options):
        taken.append(len(ids))
        return prefill(ids, *rest, **options)

    monkeypatch.setattr(engine, "prefill", counted)
    for n_prompt in (MAX_TOKENS, MAX_TOKENS + 1, 40, 41, 42, CONTEXT, CONTEXT + 5):
        generator = torch.Generator().manual_seed(n_prompt)
        ids = torch.randint(0, VOCABULARY, (n_prompt,), generator=generator).tolist()
        plain = decode_ids(model, ids, 30)
        for drafts in (None, Speculator()):
            fast = decode_ids(model, ids, 30, engine=switch, speculator=drafts)
            assert fast == plain
        assert (switch.prompt_preparation is None) == (n_prompt <= MAX_TOKENS + 1)
        if n_prompt == 41:
            may_begin.set()
            switch.prompt_preparation.join()
    # Neither of less, nor of more than the context, which slides.
    assert taken == [42, 42, CONTEXT, CONTEXT]


def test_without_memory_for_it_pytorch_goes_on(monkeypatch):
    model = lively_model(config())
    switch = Switch(model)
    switch.prepare(wait=True)

    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(switch.engine, "prepare_prefill", fail)
    ids = [index % VOCABULARY for index in range(80)]
    plain = decode_ids(model, ids, 9)
    for _ in range(2):
        assert decode_ids(model, ids, 9, engine=switch) == plain
        switch.prompt_preparation.join()
    assert not switch.engine.can_prefill
