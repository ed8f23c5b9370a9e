"""The recorded decode step, without CUDA: a replay is a plain call."""

import random
import weakref
from itertools import pairwise

import pytest
import torch

from gptcli.decode.sampling import Sampling
from gptcli.decode.speculation import Speculator
from gptcli.engine import cuda_graphs as graph_module
from gptcli.engine.cuda_graphs import CudaGraphEngine
from gptcli.engine.summary import restore, summarize
from gptcli.model.int8 import has_int8_product, int8_product, quantize_int8, quantize_weight
from gptcli.model.static_cache import StaticCache
from tests.decoding import decode_ids, decode_tokens
from tests.models import lively_model, tiny_config

VOCABULARY, CONTEXT = 120, 64


class PlainRecorder:
    """Records steps as plain calls and counts them. Like CUDA it runs a step once before recording."""

    def __init__(self):
        self.recorded = self.replayed = 0
        self.alive = weakref.WeakSet()  # the recordings that are still referenced
        self.fails = False

    def record(self, step):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        step()
        self.recorded += 1

        def replay():
            self.replayed += 1
            step()

        self.alive.add(replay)
        return replay

    def fetch(self, source):
        arrived = source.clone()  # a copy, as of now: later launches do not change it
        return lambda: arrived


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(graph_module, "WINDOW", 16)  # so that a text crosses several
    return PlainRecorder()


def config(**changes):
    return tiny_config(**{"vocab_size": VOCABULARY, "context_length": CONTEXT} | changes)


def ids_of(steps) -> list[int]:
    return [step.token_id for step in steps]


class TestText:
    def test_a_hundred_prompts_give_the_models_text_with_and_without_drafts(self, recorder):
        model, draw = lively_model(config(tie_embeddings=True)), random.Random(0)
        engine = CudaGraphEngine(model, recorder)
        for _ in range(100):
            period = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 9))]
            prompt = (period * 10)[: draw.randrange(1, CONTEXT + 6)]
            n = draw.choice((1, 2, 7, 30, 80))
            plain = ids_of(decode_tokens(model, prompt, n))
            assert ids_of(decode_tokens(model, prompt, n, engine=engine)) == plain
            assert ids_of(decode_tokens(model, prompt, n, engine=engine, speculator=Speculator())) == plain
        assert engine.describe() == "CUDA graphs"
        assert recorder.recorded > 100

    def test_logprobs_and_sampling_give_the_models_text(self, recorder):
        model = lively_model(config())
        engine = CudaGraphEngine(model, recorder)
        ours = list(decode_tokens(model, [1, 2], 40, engine=engine, logprobs=True))
        theirs = list(decode_tokens(model, [1, 2], 40, logprobs=True))
        assert ids_of(ours) == ids_of(theirs)
        assert [s.logprob for s in ours] == pytest.approx([s.logprob for s in theirs], abs=1e-5)
        sampling = Sampling(temperature=0.8, top_k=20)
        ours = ids_of(decode_tokens(model, [1, 2], 40, sampling.sampler(1, 0), engine=engine))
        assert ours == ids_of(decode_tokens(model, [1, 2], 40, sampling.sampler(1, 0)))

    def test_two_requests_that_take_turns_give_the_models_text(self, recorder):
        model = lively_model(config())
        engine = CudaGraphEngine(model, recorder)
        alone = [ids_of(decode_tokens(model, prompt, 30)) for prompt in ([1, 2], [1, 2, 3])]
        turns = [decode_tokens(model, prompt, 30, engine=engine) for prompt in ([1, 2], [1, 2, 3])]
        mixed = [[next(steps).token_id for steps in turns] for _ in range(30)]
        assert [list(ids) for ids in zip(*mixed, strict=True)] == alone

    def test_near_ties_give_the_models_text(self, recorder):
        model = lively_model(config())
        with torch.no_grad():  # every token has a twin with nearly the same logit
            model.out_head.weight[60:] = model.out_head.weight[:60] * (1 + 2e-6)
        engine = CudaGraphEngine(model, recorder)
        for first in range(8):
            plain = ids_of(decode_tokens(model, [first], 40))
            assert ids_of(decode_tokens(model, [first], 40, engine=engine)) == plain

    def test_int8_weights_give_the_models_text(self, recorder):
        model = quantize_int8(lively_model(config()))
        engine = CudaGraphEngine(model, recorder)
        assert ids_of(decode_tokens(model, [3], 50, engine=engine)) == ids_of(decode_tokens(model, [3], 50))


class TestWork:
    def test_a_token_takes_one_replay_and_launches_the_next_step(self, recorder):
        model = lively_model(config(context_length=256))
        engine = CudaGraphEngine(model, recorder)
        steps = decode_tokens(model, [1, 2, 3], 90, engine=engine)
        for n in range(90):
            next(steps)
            # The first token comes from the prompt's pass. After each other token but the last, the next
            # step has been launched.
            assert recorder.replayed == (0 if n == 0 else min(n + 1, 89))
        assert recorder.recorded == 6  # windows of 16, up to 92 tokens

    def test_a_few_tokens_are_not_recorded(self, recorder):
        engine = CudaGraphEngine(lively_model(config()), recorder)
        decode_ids(None, [1], graph_module.MIN_TOKENS_TO_RECORD, engine=engine)
        assert recorder.recorded == 0
        assert engine.describe() == "PyTorch"

    def test_recordings_of_a_deleted_cache_are_dropped(self, recorder):
        engine = CudaGraphEngine(lively_model(config()), recorder)
        for n in range(20, 40):
            decode_ids(None, [1], n, engine=engine)
            assert len(recorder.alive) <= 3  # windows of 16 positions up to 40

    def test_where_recording_fails_pytorch_decodes_and_the_reason_is_given(self, recorder):
        recorder.fails = True
        model = lively_model(config())
        engine = CudaGraphEngine(model, recorder)
        assert ids_of(decode_tokens(model, [1], 40, engine=engine)) == ids_of(decode_tokens(model, [1], 40))
        assert "not permitted when stream is capturing" in engine.describe()
        assert "and more" not in engine.describe()

    def test_a_mixture_is_not_recorded(self, recorder):
        model = lively_model(config(feed_forward="moe", n_experts=4))
        engine = CudaGraphEngine(model, recorder)
        assert ids_of(decode_tokens(model, [1], 40, engine=engine)) == ids_of(decode_tokens(model, [1], 40))
        assert recorder.recorded == 0
        assert "mixture" in engine.describe()


def test_a_static_cache_gives_the_logits_of_a_growing_one_wherever_it_starts():
    model = lively_model(config())
    ids = torch.randint(0, VOCABULARY, (1, 40))
    growing, memory = model.new_cache(1, CONTEXT), model.new_cache(1, CONTEXT)
    memory.data.normal_()  # masked, so it must not matter
    start = torch.zeros(1, dtype=torch.long)
    static = StaticCache(memory, 48, start)
    with torch.inference_mode():
        for begin, end in ((0, 7), (7, 8), (8, 16), (16, 40)):
            start.fill_(begin)
            ours, theirs = model(ids[:, begin:end], static), model(ids[:, begin:end], growing)
            assert (ours - theirs).abs().max() < 1e-5


class TestSummary:
    @pytest.mark.parametrize("n_parts", [1, 2, 5])
    def test_a_summary_keeps_what_greedy_decoding_needs(self, n_parts):
        logits = 5 * torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
        edges = [100 * i // n_parts for i in range(n_parts + 1)]
        spans = [range(a, b) for a, b in pairwise(edges)]
        whole = restore([summarize(logits[:, span.start : span.stop]) for span in spans], spans)
        assert whole.argmax(-1).equal(logits.argmax(-1))
        assert whole.amax(-1).equal(logits.amax(-1))
        assert whole.amin(-1).equal(logits.amin(-1))
        assert whole.topk(2).values.equal(logits.topk(2).values)
        best = logits.argmax(-1, keepdim=True)
        ours, theirs = (x.log_softmax(-1).gather(-1, best) for x in (whole, logits))
        assert (ours - theirs).abs().max() < 1e-5

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_a_summary_shows_nan_and_infinity_at_any_position(self, value):
        for at in (0, 50, 99):
            logits = torch.randn(100)
            logits[at] = value
            assert not restore([summarize(logits)], [range(100)]).isfinite().all()

    def test_a_summary_of_the_smallest_vocabulary_is_exact(self):
        logits = torch.tensor([0.5, -1.0, 2.0])
        assert restore([summarize(logits)], [range(3)]).tolist() == logits.tolist()


def test_pytorchs_int8_product_equals_ours():
    """Compare the operator of CUDA's int8 steps on a CPU, in float32 (half precision may crash there)."""
    assert has_int8_product(torch.device("cpu"), torch.float32)
    weight, scale = quantize_weight(torch.randn(30, 50))
    x = torch.randn(3, 50)
    expected = x @ (weight * scale[:, None]).t()
    assert (int8_product(x, weight, scale) - expected).abs().max() < 1e-4 * expected.abs().max()
