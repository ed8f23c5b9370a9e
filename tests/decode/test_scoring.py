"""Scores of texts: the windows of transformers' guide, its numbers, and the same ones on every path."""

import math
import random
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2LMHeadModel

from gptcli.api import load_model, score_text, score_texts, score_tokens
from gptcli.decode import scoring, text_chunks
from gptcli.decode.scoring import Window, score_windows, windows
from gptcli.decode.text_chunks import encode_chunks
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import NumericsError, UsageError
from gptcli.tokenizer import Tokenizer
from gptcli.train.evaluate import evaluate
from tests.engine.models import CONTEXT, VOCABULARY, config, native_engine
from tests.models import lively_model, save_huggingface

IDS = random.Random(0).choices(range(VOCABULARY), k=203)


def guides_windows(n: int, length: int, stride: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, targets) by the loop of transformers' guide; targets may count the first token."""
    found, end_before = [], 0
    for begin in range(0, n, stride):
        end = min(begin + length, n)
        found.append((begin, end, end - end_before))
        end_before = end
        if end == n:
            break
    return found


def guides_losses(model: GPT2LMHeadModel, ids: list[int], length: int, stride: int) -> tuple[float, int]:
    """Return the sum of all losses and their number, by the loop of transformers' guide."""
    total, n_scored, end_before = 0.0, 0, 0
    encoded = torch.tensor([ids])
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        n_targets = end - end_before
        input_ids = encoded[:, begin:end]
        target_ids = input_ids.clone()
        target_ids[:, :-n_targets] = -100
        n = int((target_ids[:, 1:] != -100).sum())
        if n:
            with torch.no_grad():
                total += model(input_ids, labels=target_ids).loss.item() * n
            n_scored += n
        end_before = end
        if end == len(ids):
            break
    return total, n_scored


@pytest.fixture(scope="module")
def model():
    return lively_model(config(tie_embeddings=True))


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory) -> GPT2LMHeadModel:
    folder = save_huggingface(model, tmp_path_factory.mktemp("hf"))
    return GPT2LMHeadModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module", params=["native", "torch"])
def engine(request, model):
    return native_engine(model) if request.param == "native" else TorchEngine(model)


def nats(scores) -> float:
    return -sum(float(each.logprobs.sum()) for each in scores)


@given(st.integers(0, 60), st.integers(1, 20), st.data())
@settings(max_examples=300, deadline=None)
def test_the_windows_are_those_of_the_guide(n, length, data):
    stride = data.draw(st.integers(1, length))
    ours = list(windows(iter(range(n)), length, stride))
    expected = [
        (begin, end, min(targets, end - begin - 1))
        for begin, end, targets in guides_windows(n, length, stride)
        if end - begin > 1
    ]
    assert [(w.ids[0], w.ids[-1] + 1, w.n_scored) for w in ours] == expected
    assert all(list(w.ids) == list(range(w.ids[0], w.ids[-1] + 1)) for w in ours)
    if stride < length:
        assert sum(w.n_scored for w in ours) == max(0, n - 1)


@pytest.mark.parametrize("n", [2, CONTEXT, CONTEXT + 1, 203])
@pytest.mark.parametrize("stride", [1, 7, CONTEXT // 2, CONTEXT])
def test_the_sum_is_that_of_transformers_loop(engine, reference, n, stride):
    expected, n_expected = guides_losses(reference, IDS[:n], CONTEXT, stride)
    scored = list(score_windows(engine, windows(IDS[:n], CONTEXT, stride)))
    assert sum(len(each.logprobs) for each in scored) == n_expected
    assert nats(scored) == pytest.approx(expected, rel=2e-6)


def test_trains_evaluation_gives_the_same_number(engine, model):
    """Its windows have a token more; with one less and a whole number of strides they are the same."""
    stride = 16
    n = CONTEXT + 6 * stride
    ids = IDS[:n]
    expected = evaluate(model, np.array(ids), 1000, max_length=CONTEXT - 1, stride=stride)
    scored = list(score_windows(engine, windows(ids, CONTEXT, stride)))
    assert nats(scored) / (n - 1) == pytest.approx(expected.nats_per_token, rel=2e-6)
    assert nats(scored) / math.log(2) / 1000 == pytest.approx(expected.bits_per_byte, rel=2e-6)


@pytest.mark.parametrize("chunk", [1, 5, 17, 256])
def test_chunks_and_shared_passes_change_nothing_but_the_size_of_the_logits(engine, monkeypatch, chunk):
    draw = random.Random(1)
    cut = [
        Window(ids, draw.randrange(1, len(ids)))
        for ids in (IDS[at : at + draw.randrange(2, CONTEXT + 1)] for at in range(0, 120, 3))
    ]
    alone = [next(score_windows(engine, [window])) for window in cut]
    monkeypatch.setattr(scoring, "CHUNK_TOKENS", chunk)
    sizes, real = [], type(engine).forward

    def forward(self, request):
        logits = real(self, request)
        sizes.append(len(logits))
        return logits

    monkeypatch.setattr(type(engine), "forward", forward)
    together = list(score_windows(engine, iter(cut)))
    assert max(sizes) <= chunk
    assert (len(sizes) < len(cut) / 2) == (chunk == 256)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


def test_log_probabilities_and_ranks_are_those_of_float64(engine, model):
    logits = torch.from_numpy(np.stack([TorchEngine(model).exact_logits(IDS[: i + 1]) for i in range(29)]))
    (scored,) = score_windows(engine, [Window(IDS[:30], 29)])
    expected = logits.log_softmax(-1)[torch.arange(29), IDS[1:30]]
    np.testing.assert_allclose(scored.logprobs, expected, atol=1e-5)
    ranks = 1 + (logits > logits[torch.arange(29), IDS[1:30], None]).sum(-1)
    assert scored.ranks.tolist() == ranks.tolist()


def test_equal_logits_share_a_rank_and_large_ones_do_not_overflow():
    scored = scoring._score_targets(np.array([[1000, 3, 3, 1000], [0, 1, 1, -2000]], np.float32), [0, 3])
    assert scored.ranks.tolist() == [1, 4]
    assert scored.logprobs.tolist() == pytest.approx([-math.log(2), -2000 - math.log(1 + 2 * math.e)])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(value):
    logits = np.zeros((3, 9), np.float32)
    logits[1, 4] = value
    with pytest.raises(NumericsError, match="the model's logits are not finite"):
        scoring._score_targets(logits, [0, 1, 2])


@cache
def stories_tokenizer() -> Tokenizer:
    return Tokenizer(load_model(preset="stories").config)


class TestChunks:
    @given(st.text(alphabet="ab 's\n\r\t\u00a0\u3000é1!<|endoftext>", max_size=80), st.integers(1, 9))
    @settings(max_examples=300, deadline=None)
    def test_the_ids_are_those_of_the_whole_text_however_it_is_cut(self, text, size):
        tokenizer = stories_tokenizer()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_chunks, "MIN_CHARACTERS", 10)
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            chunks = list(encode_chunks(pieces, tokenizer))
        assert "".join(chunk for chunk, _ in chunks) == text
        assert [i for _, ids in chunks for i in ids] == tokenizer.encode(text)

    def test_a_long_text_is_never_held_whole(self):
        tokenizer = stories_tokenizer()
        pieces = ("word " * 100_000 for _ in range(12))
        sizes = [len(chunk) for chunk, _ in encode_chunks(pieces, tokenizer)]
        assert len(sizes) >= 4
        assert max(sizes) < 2 << 20


class TestApi:
    TEXT = "Once upon a time there was a king, who had a daughter. " * 40

    def test_a_text_its_tokens_and_texts_agree(self):
        model = load_model(preset="stories")
        whole = score_text(model, self.TEXT)
        ids = Tokenizer(model.config).encode(self.TEXT)
        assert (whole.n_bytes, whole.n_tokens, whole.n_scored) == (len(self.TEXT), len(ids), len(ids) - 1)
        tokens = score_tokens(model, ids)
        assert [each.position for each in tokens] == list(range(1, len(ids)))
        assert [each.token_id for each in tokens] == ids[1:]
        assert whole.nats == pytest.approx(-sum(each.logprob for each in tokens), rel=1e-9)
        assert whole.perplexity == pytest.approx(math.exp(whole.nats / (len(ids) - 1)))
        assert whole.bits_per_byte == pytest.approx(whole.nats / math.log(2) / len(self.TEXT))
        texts = ["", "A", "The King said", self.TEXT, "to", "his daughter"]
        scored = list(score_texts(model, iter(texts)))
        assert [text for text, _ in scored] == texts
        for text, score in scored:
            alone = score_text(model, text)
            assert score.nats == pytest.approx(alone.nats, rel=1e-5)
            assert (score.n_bytes, score.n_tokens, score.n_scored) == (
                alone.n_bytes,
                alone.n_tokens,
                alone.n_scored,
            )
        assert math.isnan(scored[0][1].perplexity)
        assert math.isnan(scored[0][1].bits_per_byte)

    def test_many_short_texts_are_scored_in_groups(self):
        model = load_model(preset="stories")
        texts = [f"{i} geese and a fox" for i in range(1200)]  # more than one group
        scored = list(score_texts(model, texts))
        assert [text for text, _ in scored] == texts
        assert scored[-1][1].nats == pytest.approx(score_text(model, texts[-1]).nats, rel=1e-5)

    def test_with_the_largest_stride_the_first_token_of_each_window_has_no_score(self):
        model = load_model(preset="stories")
        context = model.config.context_length
        tokens = score_tokens(model, [1, 2, 3, 4] * context, stride=context)
        positions = [each.position for each in tokens]
        assert positions == [p for p in range(4 * context) if p % context]

    @pytest.mark.parametrize("stride", [0, -1, 257])
    def test_a_stride_that_would_skip_tokens_is_wrong_usage(self, stride):
        model = load_model(preset="stories")
        with pytest.raises(UsageError, match=f"--stride {stride}: expected a number from 1 to 256"):
            score_text(model, self.TEXT, stride=stride)
