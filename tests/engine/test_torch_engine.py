"""The PyTorch model as an engine."""

from tests.decoding import decode_ids
from tests.engine.models import CONTEXT, VOCABULARY, config
from tests.models import lively_model


def test_a_prompt_processed_in_parts_gives_the_same(monkeypatch):
    model = lively_model(config())
    ids = [i % VOCABULARY for i in range(0, 7 * CONTEXT, 7)]
    whole = decode_ids(model, ids[:50], 20)
    for tokens in (1, 7, 49):
        monkeypatch.setattr("gptcli.engine.torch_engine.PREFILL_TOKENS", tokens)
        assert decode_ids(model, ids[:50], 20) == whole
