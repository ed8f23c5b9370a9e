"""When the kernels take over from PyTorch, and what happens where they cannot."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from gptcli.decode.engine import ForwardRequest
from gptcli.decode.speculation import Speculator
from gptcli.engine import switch as switch_module
from gptcli.engine.cpu import MAX_TOKENS, CpuEngine
from gptcli.engine.switch import Switch
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.int8 import quantize_int8
from tests.decoding import decode_ids, decode_tokens
from tests.engine.models import config, ready_switch
from tests.models import lively_model

ROOT = Path(__file__).parents[2]


class TestSwitch:
    def test_is_not_prepared_for_a_few_tokens_and_is_for_many(self, monkeypatch):
        model = lively_model(config())
        for n, seconds, expected in ((20, 1e9, False), (20, 0.0, True)):
            monkeypatch.setattr(switch_module, "PREPARE_SECONDS", seconds)
            switch = Switch(model)
            list(decode_tokens(model, [1], n, engine=switch))
            assert (switch.preparation is not None) == expected

    def test_takes_over_in_the_midst_and_gives_the_threads_back(self, monkeypatch):
        model = lively_model(config())
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0.0)
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            switch = Switch(model)
            steps = decode_tokens(model, [1], 50, engine=switch)
            ids = [next(steps).token_id for _ in range(4)]
            assert switch.preparation is not None
            switch.preparation.join()
            ids += [step.token_id for step in steps]
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert switch.max_tokens == MAX_TOKENS
        assert "Numba kernels, 2 threads by" in switch.describe()
        assert ids == decode_ids(model, [1], 50)

    def test_serves_several_texts_at_a_time_in_one_thread_and_in_many(self):
        model = lively_model(config())
        switch = ready_switch(model)
        plain = {first: decode_ids(model, [first], 50) for first in range(6)}
        together = [
            decode_tokens(model, [first], 50, engine=switch, speculator=Speculator()) for first in range(6)
        ]
        turns = [[next(steps).token_id for steps in together] for _ in range(50)]
        assert [list(ids) for ids in zip(*turns, strict=True)] == list(plain.values())
        found: dict[int, list[int]] = {}

        def decode(first: int) -> None:
            found[first] = decode_ids(model, [first], 50, engine=switch)

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
        plain = decode_ids(model, [1], 9)
        assert decode_ids(model, [1], 9, engine=switch) == plain

    @pytest.mark.parametrize(("exactness", "expected"), [("argmax", 0), ("argmax_logprob", 1), ("all", 1)])
    def test_the_exact_head_is_prepared_where_it_is_wanted(self, monkeypatch, exactness, expected):
        prepared, warm_up = [], CpuEngine.warm_up_head
        monkeypatch.setattr(CpuEngine, "warm_up_head", lambda self: (prepared.append(1), warm_up(self)))
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0)
        model = lively_model(config())
        switch = Switch(model)
        cache = switch.new_cache(1, 9)

        def logits(token: int, exactness: str):
            cache.truncate(0)
            request = ForwardRequest([[token]], cache, exactness=exactness, tokens_left=9)
            return switch.forward(request)[0, 0]

        while switch.preparation is None:
            logits(1, exactness)
        switch.preparation.join()
        assert len(prepared) == expected
        for wanted in ("argmax", "all"):  # and where it was not foreseen, it is there all the same
            with torch.inference_mode():
                assert logits(2, wanted).argmax() == model(torch.tensor([[2]])).argmax()
        prepared.clear()
        Switch(quantize_int8(lively_model(config()))).prepare(wait=True)
        assert prepared == [1]

    def test_without_numba_pytorch_goes_on_and_says_why(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gptcli.engine.cpu", None)
        model = lively_model(config())
        switch = Switch(model)
        switch.prepare(wait=True)
        assert switch.describe().startswith(
            "PyTorch (the kernels cannot be prepared: import of gptcli.engine"
        )
        assert len(decode_ids(model, [1], 9, engine=switch, speculator=Speculator())) == 9

    def test_the_reason_for_pytorch_names_no_class(self):
        model = lively_model(config(feed_forward="moe"))
        switch = Switch(model)
        switch.prepare(wait=True)
        assert switch.describe() == "PyTorch (feed-forward moe has no kernel)"

    def test_a_text_that_ends_while_the_kernels_are_prepared_leaves_the_threads_as_they_were(
        self, monkeypatch
    ):
        monkeypatch.setattr(switch_module, "PREPARE_SECONDS", 0.0)
        may_end, used = threading.Event(), []
        monkeypatch.setattr(CpuEngine, "warm_up", lambda _self: may_end.wait())
        forward = TorchEngine.forward

        def noting(self, request):
            used.append(torch.get_num_threads())
            return forward(self, request)

        monkeypatch.setattr(TorchEngine, "forward", noting)
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            switch = Switch(lively_model(config()))
            decode_ids(None, [1], 9, engine=switch)
            assert torch.get_num_threads() == 2  # it is the host program's
            assert set(used) == {1, 2}  # one is left to the preparation while that runs
        finally:
            may_end.set()
            switch.preparation.join()
            torch.set_num_threads(before)

    @pytest.mark.parametrize("seconds", [0.0, 0.3, 0.6])
    def test_a_program_may_end_while_it_is_prepared(self, seconds):
        code = f"""
import time
from gptcli.engine.switch import Switch
from gptcli.engine.torch_engine import TorchEngine
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
from gptcli.engine.torch_engine import TorchEngine
from tests.models import lively_model, tiny_config
switch = Switch(lively_model(tiny_config()))
switch.prepare(wait=True)
assert switch.max_tokens, switch.unavailable_reason
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
