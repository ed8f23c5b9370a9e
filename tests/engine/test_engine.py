"""The engine's kernels against the model, and the promise that neither they nor guesses show in the ids."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from gptcli.config.activations import ACTIVATIONS
from gptcli.decode.loop import decode_greedy
from gptcli.decode.prompt_lookup import Lookup
from gptcli.decode.speculation import Drafts
from gptcli.engine import guesser as guesser_module
from gptcli.engine import onednn
from gptcli.engine import switch as switch_module
from gptcli.engine.cpu import MAX_TOKENS, CpuEngine, unsupported
from gptcli.engine.products import ACTIVATION_CODES
from gptcli.engine.switch import Switch
from gptcli.model.activations import Identity
from gptcli.model.cache import KVCache
from gptcli.model.int8 import Int8Linear, int8_copy, quantize_int8
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from tests.models import lively_model, save_huggingface, tiny_config

ROOT = Path(__file__).parents[2]
VOCABULARY, CONTEXT = 120, 64


def config(**changes):
    return tiny_config(**{"vocab_size": VOCABULARY, "context_length": CONTEXT} | changes)


def by_columns(model, folder: Path):
    """The model as a Hugging Face file gives it: matrices transposed, query, key and value side by side."""
    loaded = load_weights(plan_load(save_huggingface(model, folder), []), device="cpu", dtype=torch.float32)
    return loaded.model


def assert_steps_equal(model, engine: CpuEngine, reference=None, tolerance: float = 2e-6) -> None:
    """Several steps of 1 to 16 tokens, from an empty cache on to the end of the context."""
    generator = torch.Generator().manual_seed(0)
    weight = model.tok_emb.weight
    cache = KVCache(model.config, 1, CONTEXT, dtype=weight.dtype)
    ids: list[int] = []
    for T in (1, 1, 2, 3, 4, 5, 7, MAX_TOKENS, 1, 8, 8, 8):
        new = torch.randint(0, VOCABULARY, (T,), generator=generator).tolist()
        ids += new
        with torch.inference_mode():
            ours = engine.logits(new, cache)
            theirs = (reference or model)(torch.tensor([ids]))[0, -T:].float()
        assert ours.shape == (T, VOCABULARY)
        assert cache.length == len(ids)
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert len(ids) == CONTEXT


class TestKernels:
    def test_give_only_the_last_logits_where_only_they_are_wanted(self):
        model = lively_model(config())
        engine, ids = CpuEngine(model, 2), [3, 1, 4, 1, 5]
        with torch.inference_mode():
            expected = model(torch.tensor([ids]))[0]
            for last in (None, 1, 2, 5):
                logits = engine.logits(ids, KVCache(model.config, 1, 5), last=last)
                assert len(logits) == (last or 5)
                assert (logits - expected[-len(logits) :]).abs().max() <= 2e-6 * expected.abs().max()

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"qkv_bias": False, "tie_embeddings": True},
            {"n_heads": 1, "n_layers": 3, "ffn_dim": 10},
            *({"activation": name} for name in sorted(ACTIVATION_CODES)),
        ],
        ids=str,
    )
    def test_equal_the_model_step_by_step(self, changes):
        model = lively_model(config(**changes))
        assert_steps_equal(model, CpuEngine(model, 2))

    @pytest.mark.parametrize(
        ("changes", "activation"),
        [({}, "gelu_new"), ({"tie_embeddings": True}, "gelu_new"), ({"activation": "gelu"}, "gelu")],
        ids=str,
    )
    def test_equal_it_on_the_columns_of_a_hugging_face_file(self, tmp_path, changes, activation):
        folder = save_huggingface(lively_model(config(**changes)), tmp_path, activation_function=activation)
        model = load_weights(plan_load(folder, []), device="cpu", dtype=torch.float32).model
        assert_steps_equal(model, CpuEngine(model, 2))

    def test_an_unbiased_norm_and_bias_free_feed_forwards(self):
        model = lively_model(config(norm_unbiased=True, ffn_bias=False))
        assert_steps_equal(model, CpuEngine(model, 1))

    def test_know_query_key_and_value_in_another_order_from_those_of_a_file(self, tmp_path):
        model = by_columns(lively_model(config()), tmp_path)
        for block in model.trf_blocks:
            att = block.att
            att.W_query, att.W_value = att.W_value, att.W_query
        assert_steps_equal(model, CpuEngine(model, 2))

    def test_read_the_weights_where_they_lie(self, tmp_path):
        model = by_columns(lively_model(config()), tmp_path)
        engine = CpuEngine(model, 2)
        assert_steps_equal(model, engine)
        with (
            torch.no_grad()
        ):  # a matrix that is changed in the model is changed in the engine: it is the same
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(1.5)
        assert_steps_equal(model, engine)

    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)], ids=str
    )
    def test_half_precision_weights_with_float32_sums(self, dtype, tolerance):
        model = lively_model(config()).to(dtype)
        exact = lively_model(config()).to(dtype).float()  # the same weights; only the cache is coarser
        assert_steps_equal(model, CpuEngine(model, 2), reference=exact, tolerance=tolerance)

    def test_int8_weights(self):
        model = quantize_int8(lively_model(config()))
        assert_steps_equal(model, CpuEngine(model, 2))

    @pytest.mark.parametrize(
        "kind", [{"feed_forward": "swiglu"}, {"feed_forward": "moe"}, {"activation": "tanh"}]
    )
    def test_what_has_no_kernel_is_said_and_decoded_by_pytorch(self, kind):
        model = lively_model(config(**kind))
        assert unsupported(model)
        switch = Switch(model)
        switch.prepare(wait=True)
        assert "has no kernel" in switch.describe()
        plain = [s.token_id for s in decode_greedy(model, [1, 2], 9)]
        assert [s.token_id for s in decode_greedy(model, [1, 2], 9, engine=switch, drafts=Drafts())] == plain


class TestInt8:
    def test_is_within_half_a_step_of_every_weight(self):
        torch.manual_seed(0)
        linear = torch.nn.Linear(50, 30)
        with torch.no_grad():
            linear.weight[3] = 0
            linear.weight[4] *= 1000
        quantized = Int8Linear(linear)
        error = (quantized.weight * quantized.scale[:, None] - linear.weight).abs()
        assert (error <= quantized.scale[:, None] / 2 * 1.0001).all()
        x = torch.randn(2, 50)
        expected = x @ (quantized.weight * quantized.scale[:, None]).T + linear.bias
        torch.testing.assert_close(quantized(x), expected, rtol=1e-5, atol=1e-4)
        assert quantized.weight.dtype == torch.int8

    def test_takes_every_linear_but_a_router_and_keeps_biases(self):
        model = quantize_int8(lively_model(config(feed_forward="moe", n_experts=2, ffn_bias=True)))
        left = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        assert left == ["trf_blocks.0.ff.gate", "trf_blocks.1.ff.gate"]
        assert model.trf_blocks[0].att.W_query.bias is not None
        assert len(list(decode_greedy(model, [1], 5))) == 5


def ids_of(steps) -> list[int]:
    return [step.token_id for step in steps]


def ready_switch(model) -> Switch:
    switch = Switch(model)
    switch.prepare(wait=True)
    assert switch.why_not is None
    return switch


def proposed(drafts: Drafts, ids: list[int], most: int) -> list[int]:
    cache = KVCache(config(), 1, CONTEXT)
    cache.length = len(ids) - 1
    return drafts.propose(ids, most, cache, 1000)


class ScriptedDrafts(Drafts):
    """Guesses of which every n-th is wrong, from the text that will come."""

    def __init__(self, whole: list[int], wrong_every: int) -> None:
        super().__init__()
        self._whole, self._wrong_every, self.n_proposed = whole, wrong_every, 0

    def propose(self, ids, most, _cache, _tokens_left):
        guesses = self._whole[len(ids) : len(ids) + most]
        for i in range(len(guesses)):
            self.n_proposed += 1
            if self._wrong_every and self.n_proposed % self._wrong_every == 0:
                guesses[i] = (guesses[i] + 1) % VOCABULARY
        return guesses


class TestSpeculation:
    def test_never_shows_in_the_ids_of_hundreds_of_prompts(self, tmp_path):
        """Text that loops, to the end of the budget and past the end of the context."""
        draw = random.Random(0)
        for seed, model in enumerate(
            (lively_model(config()), by_columns(lively_model(config(tie_embeddings=True), 1), tmp_path))
        ):
            switch = ready_switch(model)
            for i in range(150):
                period = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 9))]
                prompt = (period * 10)[: draw.randrange(1, CONTEXT + 6)]
                n = draw.choice((1, 2, 7, 30, 80))
                plain = [s.token_id for s in decode_greedy(model, prompt, n)]
                fast = [s.token_id for s in decode_greedy(model, prompt, n, engine=switch, drafts=Drafts())]
                assert fast == plain, (seed, i)

    @pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 5])
    def test_whatever_part_of_the_guesses_is_right(self, wrong_every):
        model = lively_model(config())
        switch = ready_switch(model)
        whole = [3, *(s.token_id for s in decode_greedy(model, [3], 200))]
        drafts = ScriptedDrafts(whole, wrong_every)
        steps = list(decode_greedy(model, [3], 200, engine=switch, drafts=drafts, logprobs=True))
        assert [step.token_id for step in steps] == whole[1:]
        assert drafts.n_proposed > 30
        plain = [step.logprob for step in decode_greedy(model, [3], 200, logprobs=True)]
        assert [step.logprob for step in steps] == pytest.approx(plain, abs=1e-4)

    def test_rounding_never_decides_with_guesses_what_it_does_not_without(self, monkeypatch):
        model = lively_model(config())
        with torch.no_grad():  # every token has a twin, but for less than the engine may be off
            model.out_head.weight[60:] = model.out_head.weight[:60] * (1 + 2e-6)
        switch = ready_switch(model)
        real = CpuEngine.logits

        def rounded(self, ids, cache, **options):
            return real(self, ids, cache, **options) * (1 + 2e-6 * torch.randn(len(ids), VOCABULARY))

        monkeypatch.setattr(CpuEngine, "logits", rounded)
        differed = 0
        for first in range(8):
            plain = [s.token_id for s in decode_greedy(model, [first], 40)]
            fast = decode_greedy(model, [first], 40, engine=switch, drafts=ScriptedDrafts([first, *plain], 3))
            assert [s.token_id for s in fast] == plain
            with monkeypatch.context() as patch:
                patch.setattr("gptcli.decode.loop.is_near_tie", lambda logits: [False] * len(logits))
                unguarded = decode_greedy(model, [first], 40, engine=switch)
                differed += [s.token_id for s in unguarded] != plain
        assert differed

    def test_a_reader_that_stops_at_a_guess_leaves_nothing_behind(self):
        model = lively_model(config())
        switch = ready_switch(model)
        whole = [3, *(s.token_id for s in decode_greedy(model, [3], 40))]
        for n in range(1, 12):
            steps = decode_greedy(model, [3], 40, engine=switch, drafts=ScriptedDrafts(whole, 0))
            assert [next(steps).token_id for _ in range(n)] == whole[1 : n + 1]
            steps.close()

    def test_the_command_prints_the_same_text(self, cli, monkeypatch):
        """The stories model, with a stop string and end of text among what is guessed."""
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0.0)
        base = ("generate", "the king said to the king said to the king said", "-n", 90, "-q")
        for options in ((), ("--stop", "said"), ("--ignore-eos",), ("--overflow", "stop", "-n", 400)):
            plain = cli(*base, *options, "--speculate", "off").out
            assert cli(*base, *options).out == plain
            assert cli(*base, *options, "--draft-tokens", 2, "--threads", 1).out == plain


class TestOwnGuesses:
    """The int8 copy guesses, float32 decides."""

    def test_never_show_in_the_ids_of_hundreds_of_prompts(self, tmp_path):
        draw = random.Random(1)
        right = checked = 0
        for model in (
            lively_model(config()),
            by_columns(lively_model(config(tie_embeddings=True)), tmp_path),
        ):
            switch = ready_switch(model)
            switch.guesser.prepare(wait=True)
            for _ in range(100):
                prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, CONTEXT + 6))]
                n = draw.choice((1, 2, 7, 30, 80))
                plain = ids_of(decode_greedy(model, prompt, n))
                drafts = Counting(lookup=False, drafter=switch.guesser)
                assert ids_of(decode_greedy(model, prompt, n, engine=switch, drafts=drafts)) == plain
                both = Drafts(drafter=switch.guesser)
                assert ids_of(decode_greedy(model, prompt, n, engine=switch, drafts=both)) == plain
                right, checked = right + drafts.n_right, checked + drafts.n_checked
        assert checked > 1500
        assert 0.8 < right / checked < 1

    def test_leave_the_cache_and_the_model_as_they_were(self):
        model = lively_model(config())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        switch = ready_switch(model)
        switch.guesser.prepare(wait=True)
        cache = KVCache.of(model, 1, CONTEXT)
        with torch.inference_mode():
            model(torch.tensor([[1, 2, 3]]), cache)
            held = cache.data[..., :3, :].clone()
            assert len(switch.guesser.guess(4, cache, 5)) == 5
        assert cache.length == 3
        assert cache.data[..., :3, :].equal(held)
        assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
        copy = int8_copy(model)
        assert copy.tok_emb.weight is model.tok_emb.weight or copy.tok_emb.weight.equal(model.tok_emb.weight)
        assert copy.tok_emb.weight.data_ptr() == model.tok_emb.weight.data_ptr()

    def test_share_the_int8_head_that_the_engine_has(self):
        model = lively_model(config())
        switch = ready_switch(model)
        switch.guesser.prepare(wait=True)
        weight, scale = switch.engine.int8_head
        guessing = switch.guesser._copy._head.weights[0]
        assert guessing.ctypes.data == weight.data_ptr()
        apart, shared = int8_copy(model).out_head, int8_copy(model, (weight, scale)).out_head
        assert shared.weight.data_ptr() == weight.data_ptr()
        assert shared.weight.equal(apart.weight)
        assert shared.scale.equal(apart.scale)
        assert CpuEngine(model, 2).int8_head is None

    def test_are_asked_for_where_they_cost_less_than_they_save(self):
        class Free:
            asked = 0

            def can_guess(self, _tokens_left):
                return True

            def guess(self, _token, _cache, n):
                self.asked += 1
                return [0] * n

        for cost, rate, expected in ((0.3, 0.99, 1), (0.9, 0.99, 0), (0.3, 0.1, 0)):
            drafter = Free()
            drafts = Drafts(drafter=drafter)
            drafts._drafter_rate = rate
            drafts._seconds = {
                (1, False): 1.0,
                **{(n, True): 1 + (cost + 0.15) * (n - 1) for n in range(2, 9)},
            }
            assert bool(proposed(drafts, [1, 2, 3, 4], 7)) == expected
            assert drafter.asked == expected
            drafts = Drafts(drafter=drafter)
            drafts._rate = 0.99  # guesses from the text cost nothing, and go first
            assert proposed(drafts, [1, 2, 1, 2, 1], 3) == [2, 1, 2]

    def test_are_prepared_for_long_texts_alone_and_for_float32(self, monkeypatch):
        model = lively_model(config())
        n_bytes = sum(parameter.nbytes for parameter in model.parameters())
        monkeypatch.setattr(guesser_module, "COPIED_BYTES_PER_SECOND", n_bytes)  # takes a second
        monkeypatch.setattr(guesser_module, "SAVED", 0.2)
        switch = ready_switch(model)
        switch._step_seconds = 0.1  # so saves 0.01 s a token
        assert not switch.guesser.can_guess(99)
        assert switch.guesser._thread is None
        switch.guesser.can_guess(101)
        switch.guesser.prepare(wait=True)
        assert switch.guesser.can_guess(1)
        assert switch.describe().endswith(", int8 guesses")
        for other in (quantize_int8(lively_model(config())), lively_model(config()).bfloat16()):
            switch = ready_switch(other)
            switch._step_seconds = 1e9
            assert not switch.guesser.can_guess(100)
            assert switch.guesser._thread is None

    def test_the_command_prints_the_same_text_and_says_where_it_cannot(self, cli):
        base = ("generate", "Once upon a time", "-n", 60)
        plain = cli(*base, "-q", "--speculate", "off").out
        result = cli(*base, "--speculate", "self", "--stats")
        assert (result.status, result.out) == (0, plain)
        assert ", int8 guesses" in result.err
        for options, why in (
            (("--quantize", "int8"), "for float32 weights"),
            (("--dtype", "bfloat16"), "for float32 weights"),
            (("-p", "gpt-124m-moe", "--set", "n_layers=1", "--set", "emb_dim=24"), "has no kernel"),
        ):
            result = cli(*base, "-q", "--speculate", "self", *options)
            assert result.status == 2
            assert why in result.err


class Counting(Drafts):
    """Counts the drafter's guesses and those that were right."""

    n_checked = n_right = 0

    def saw(self, tokens):
        checked = min(len(self._drafted), len(tokens))
        self.n_checked += checked
        self.n_right += sum(a == b for a, b in zip(self._drafted, tokens, strict=False))
        super().saw(tokens)


class TestGuesses:
    def test_are_what_followed_before_on_through_a_loop(self):
        assert Lookup().propose([1, 2, 3], 4) == []
        assert Lookup().propose([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
        assert Lookup().propose([7, 1, 2, 7, 1, 2], 7) == [7, 1, 2, 7, 1, 2, 7]
        assert Lookup().propose([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2], 2) == [8, 6]  # three tokens before two

    def test_grow_with_the_text_as_if_it_had_been_there_at_once(self):
        draw = random.Random(0)
        ids = [draw.randrange(4) for _ in range(300)]
        growing = Lookup()
        for end in range(1, 300):
            assert growing.propose(ids[:end], 5) == Lookup().propose(ids[:end], 5)

    def test_are_not_checked_where_they_are_always_wrong_and_are_again_when_they_come_true(self):
        drafts, ids = Drafts(), [1, 2, 1, 2, 1, 2]
        checked = []
        for _ in range(40):
            checked.append(len(proposed(drafts, ids, 7)))
            drafts.saw([50])  # never what followed before
        assert checked[0] > 0
        assert checked[30:] == [0] * 10
        for _ in range(40):
            checked.append(len(proposed(drafts, ids, 7)))
            drafts.saw([1])
        assert checked[-1] == 7

    def test_learn_what_steps_cost_while_decoding(self):
        model = lively_model(config())
        drafts = Drafts()
        list(decode_greedy(model, [1, 2, 1, 2, 1, 2], 50, engine=ready_switch(model), drafts=drafts))
        assert drafts._seconds[1, False] > 0
        assert not Drafts(measures=False)._seconds

    def test_are_as_many_as_pay_by_the_measured_costs(self):
        drafts = Drafts()
        drafts._rate = 0.9
        drafts._seconds = {(1, False): 1.0, **{(n, False): 5.0 * n for n in range(2, 9)}}
        assert proposed(drafts, [1, 2, 1, 2, 1], 7) == []
        drafts._seconds = dict.fromkeys(((n, False) for n in range(1, 9)), 1.0)
        assert len(proposed(drafts, [1, 2, 1, 2, 1], 7)) == 7
        assert len(proposed(Drafts(most=1), [1, 2, 1, 2, 1], 7)) == 1


class TestSwitch:
    def test_is_not_prepared_for_a_few_tokens_and_is_for_many(self, monkeypatch):
        model = lively_model(config())
        for n, seconds, expected in ((20, 1e9, False), (20, 0.0, True)):
            monkeypatch.setattr(switch_module, "PREPARE_SECONDS", seconds)
            switch = Switch(model)
            list(decode_greedy(model, [1], n, engine=switch))
            assert (switch._thread is not None) == expected

    def test_takes_over_in_the_midst_and_gives_the_threads_back(self, monkeypatch):
        model = lively_model(config())
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0.0)
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            switch = Switch(model)
            steps = decode_greedy(model, [1], 50, engine=switch)
            ids = [next(steps).token_id for _ in range(4)]
            assert switch._thread is not None
            switch._thread.join()
            ids += [step.token_id for step in steps]
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert switch.max_tokens == MAX_TOKENS
        assert "Numba kernels, 2 threads by" in switch.describe()
        assert ids == [s.token_id for s in decode_greedy(model, [1], 50)]

    def test_serves_several_texts_at_a_time_in_one_thread_and_in_many(self):
        model = lively_model(config())
        switch = ready_switch(model)
        plain = {first: [s.token_id for s in decode_greedy(model, [first], 50)] for first in range(6)}
        together = [decode_greedy(model, [first], 50, engine=switch, drafts=Drafts()) for first in range(6)]
        turns = [[next(steps).token_id for steps in together] for _ in range(50)]
        assert [list(ids) for ids in zip(*turns, strict=True)] == list(plain.values())
        found: dict[int, list[int]] = {}

        def decode(first: int) -> None:
            found[first] = [s.token_id for s in decode_greedy(model, [first], 50, engine=switch)]

        threads = [threading.Thread(target=decode, args=(first,)) for first in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == plain

    def test_without_memory_for_the_quick_head_the_engine_goes_on_with_the_whole_one(self, monkeypatch):
        def fail(_engine: CpuEngine) -> None:
            raise MemoryError

        monkeypatch.setattr(CpuEngine, "build_quick_head", fail)
        model = lively_model(config())
        switch = Switch(model)
        switch.prepare(wait=True)  # an error that left the thread would be a warning, and fail this test
        assert "Numba kernels" in switch.describe()
        plain = [s.token_id for s in decode_greedy(model, [1], 9)]
        assert [s.token_id for s in decode_greedy(model, [1], 9, engine=switch)] == plain

    @pytest.mark.parametrize(
        ("greedy", "logprobs", "expected"), [(True, False, 0), (True, True, 1), (False, False, 1)]
    )
    def test_the_exact_head_is_prepared_where_it_is_wanted(self, monkeypatch, greedy, logprobs, expected):
        prepared, warm_up = [], CpuEngine.warm_up_head
        monkeypatch.setattr(CpuEngine, "warm_up_head", lambda self: (prepared.append(1), warm_up(self)))
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0)
        model = lively_model(config())
        switch, cache = Switch(model), KVCache.of(model, 1, 9)
        with torch.inference_mode():
            while switch._thread is None:
                assert switch.logits([1], cache, 9, greedy=greedy, logprobs=logprobs) is None
            switch._thread.join()
            assert len(prepared) == expected
            for is_greedy in (True, False):  # and where it was not foreseen, it is there all the same
                logits = switch.logits([2], cache, 9, greedy=is_greedy, logprobs=False)
                cache.truncate(0)
                assert logits.argmax() == model(torch.tensor([[2]])).argmax()
        prepared.clear()
        Switch(quantize_int8(lively_model(config()))).prepare(wait=True)
        assert prepared == [1]

    def test_without_numba_pytorch_goes_on_and_says_why(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gptcli.engine.cpu", None)
        model = lively_model(config())
        switch = Switch(model)
        switch.prepare(wait=True)
        assert switch.describe().startswith("PyTorch (ModuleNotFoundError")
        assert len(list(decode_greedy(model, [1], 9, engine=switch, drafts=Drafts()))) == 9

    @pytest.mark.parametrize("seconds", [0.0, 0.3, 0.6])
    def test_a_program_may_end_while_it_is_prepared(self, seconds):
        code = f"""
import time
from gptcli.engine.switch import Switch
from tests.models import lively_model, tiny_config
switch = Switch(lively_model(tiny_config(vocab_size=50257, emb_dim=256)))
switch.prepare()
time.sleep({seconds})
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.parametrize("folder", ["/dev/null/nowhere", "/proc"])
    def test_compiled_kernels_that_cannot_be_kept_do_no_harm(self, folder):
        code = """
from gptcli.engine.switch import Switch
from tests.models import lively_model, tiny_config
switch = Switch(lively_model(tiny_config()))
switch.prepare(wait=True)
assert switch.max_tokens, switch.why_not
"""
        env = os.environ | {"NUMBA_CACHE_DIR": folder, "HOME": "/dev/null/home"}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=120)

    def test_a_short_run_never_imports_numba(self):
        code = """
import sys
import threading
from gptcli.cli.app import run
assert run(["generate", "Once upon a time", "-n", "6", "-q"]) == 0
assert "numba" not in sys.modules
"""
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, stdout=subprocess.DEVNULL
        )


class TestOneDnn:
    @pytest.mark.parametrize("shape", [(1, 1, 24), (2, 3, 24), (100, 24)], ids=str)
    def test_gives_what_linear_gives_however_a_matrix_lies(self, shape):
        torch.manual_seed(0)
        x, bias, wide = torch.randn(shape), torch.randn(10), torch.randn(24, 30)
        with torch.inference_mode():
            for weight in (torch.randn(10, 24), torch.randn(24, 10).t(), wide[:, 10:20].t(), wide.t()[::3]):
                for b in (bias, None):
                    expected = torch.nn.functional.linear(x, weight, b)
                    torch.testing.assert_close(onednn.linear(x, weight, b), expected, rtol=1e-5, atol=1e-5)

    def test_is_left_alone_where_gradients_are_wanted_or_it_is_not_there(self, monkeypatch):
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
        monkeypatch.setattr(onednn, "is_there", lambda: True)
        model = lively_model(config())
        onednn.use_onednn(model)
        model(torch.tensor([[1, 2]])).sum().backward()  # with gradients it is not called
        with torch.inference_mode(), pytest.raises(TypeError):
            model(torch.tensor([[1, 2]]))

    def test_what_cannot_be_called_or_multiplies_wrong_is_not_there(self, monkeypatch):
        assert onednn.is_there()
        for broken in (None, lambda *_: (_ for _ in ()).throw(RuntimeError), lambda x, w, *_: x @ w.t()):
            onednn.is_there.cache_clear()
            monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", broken)
            assert not onednn.is_there()
        onednn.is_there.cache_clear()

    @pytest.mark.parametrize("has_products", [True, False])
    def test_widens_float16_where_the_processor_has_no_products_of_it(self, monkeypatch, has_products):
        monkeypatch.setattr(onednn, "multiplies_half", lambda: has_products)
        torch.manual_seed(0)
        weight, bias = torch.randn(10, 24).half(), torch.randn(10).half()
        with torch.inference_mode():
            for n in (1, onednn.WIDENING_TOKENS, 100):
                x = torch.randn(n, 24).half()
                y = onednn.linear(x, weight, bias)
                exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
                assert y.dtype == torch.float16
                assert (y - exact).abs().max() < 2e-2
                if n > 1 and not has_products:  # then it is as exact as the type allows
                    assert (y - exact).abs().max() <= exact.abs().max() * 2**-11 * 1.01

    @pytest.mark.parametrize("bias", [True, False])
    def test_projects_query_key_and_value_at_once_where_they_lie_side_by_side(self, tmp_path, bias):
        plain = by_columns(lively_model(config()), tmp_path / "plain")
        fused = by_columns(lively_model(config()), tmp_path / "fused")
        for model in (plain, fused):
            for block in model.trf_blocks if not bias else ():
                for linear in (block.att.W_query, block.att.W_key, block.att.W_value):
                    linear.bias = None
        onednn.use_onednn(fused)
        ids = torch.randint(0, VOCABULARY, (2, 20))
        with torch.inference_mode():
            assert (fused(ids) - plain(ids)).abs().max() < 1e-5
        assert all(isinstance(b.att.project, onednn.OneDnnProjection) for b in fused.trf_blocks)
        apart = lively_model(config())  # matrices of their own
        onednn.use_onednn(apart)
        assert not any(isinstance(block.att.project, onednn.OneDnnProjection) for block in apart.trf_blocks)

    @pytest.mark.parametrize("name", sorted(ACTIVATIONS))
    @pytest.mark.parametrize("is_there", [True, False])
    def test_activations_go_with_the_product_before_them(self, monkeypatch, name, is_there):
        plain, fused = (lively_model(config(activation=name)) for _ in range(2))
        monkeypatch.setattr(onednn, "is_there", lambda: is_there)
        onednn.use_onednn(fused)
        ids = torch.randint(0, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert (fused(ids) - plain(ids)).abs().max() < 1e-5
        is_fused = type(plain.trf_blocks[0].ff.layers[1]) in onednn.FUSED
        assert is_fused == (name in {"relu", "gelu", "gelu_tanh", "silu"})
        assert isinstance(fused.trf_blocks[0].ff.layers[1], Identity) == (is_fused or name == "identity")
        # With gradients PyTorch computes them, and the activation is not lost.
        torch.testing.assert_close(fused(ids), plain(ids), rtol=1e-5, atol=1e-5)

    def test_an_activation_that_is_computed_wrong_is_noticed(self, monkeypatch):
        def without(x, weight, bias, *_):
            return torch.nn.functional.linear(x, weight, bias)

        onednn.is_there.cache_clear()
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", without)
        assert not onednn.is_there()
        onednn.is_there.cache_clear()

    def test_takes_the_models_own_parameters(self):
        model = lively_model(config(tie_embeddings=True))
        before = dict(model.named_parameters())
        onednn.use_onednn(model)
        assert all(parameter is before[name] for name, parameter in model.named_parameters())
        assert model.out_head.weight is model.tok_emb.weight
        assert unsupported(model) is None


def test_a_prompt_taken_in_by_parts_gives_the_same(monkeypatch):
    model = lively_model(config())
    ids = [i % VOCABULARY for i in range(0, 7 * CONTEXT, 7)]
    whole = [s.token_id for s in decode_greedy(model, ids[:50], 20)]
    for tokens in (1, 7, 49):
        monkeypatch.setattr("gptcli.decode.loop.PREFILL_TOKENS", tokens)
        assert [s.token_id for s in decode_greedy(model, ids[:50], 20)] == whole
