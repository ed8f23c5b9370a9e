"""One text on every machine: greedy ids of every path against float64 arithmetic, compared by the thousand.

    python -m tests.benchmarks.one_text

A path is a kind of model, an instruction set, a number of threads, a batch size, a length of drafts, with a
cache or without, or PyTorch. In half of the models every row of the head has a twin, a millionth larger or
smaller, which float32 sums cannot tell apart. The reference is transformers in float64, and our own PyTorch
model in float64 for kinds that transformers does not have. Ends with status 1 if any two texts differ.
"""

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.decode.engine import Engine
from gptcli.decode.loop import decode
from gptcli.decode.speculation import Speculator
from gptcli.engine.native import library
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import NumericsError
from gptcli.model.gpt import GPTModel
from gptcli.model.int8 import Int8Linear, quantize_int8
from tests.decode.scripted import ScriptedSpeculator
from tests.engine.models import native_engine
from tests.models import huggingface_config, huggingface_state, lively_model, tiny_config

N_PROMPTS, N_TOKENS = 32, 24
KINDS: dict[str, dict] = {
    "mlp": {},
    "mlp, tied": {"tie_embeddings": True, "emb_dim": 60, "n_heads": 5},
    "mlp, relu, unbiased norm": {"activation": "relu", "norm_unbiased": True, "qkv_bias": False},
    "swiglu": {"feed_forward": "swiglu", "ffn_dim": 50},
    "geglu": {"feed_forward": "geglu", "ffn_dim": 50},
}
# Of these the native engine decides near ties by their own stored weights; PyTorch decodes them in 16 bits.
STORED = ("bfloat16", "float16", "int8")
Ids = list[list[int]]


def models() -> Iterator[tuple[str, GPTModel]]:
    """Yield models of every kind, without and with twins."""
    for name, changes in KINDS.items():
        for twins in (False, True):
            config = tiny_config(**({"vocab_size": 400, "context_length": 64, "n_layers": 3} | changes))
            model = lively_model(config, 1)
            if twins:
                weight = model.out_head.weight.detach()
                with torch.no_grad():
                    signs = torch.randint(2, (200, 1), generator=torch.Generator().manual_seed(0)) * 2 - 1
                    weight[200:] = weight[:200] * (1 + 1e-6 * signs)
            yield f"{name}{', twins' if twins else ''}", model
    for dtype in STORED:
        model = lively_model(tiny_config(vocab_size=400, context_length=64, n_layers=3), 2)
        yield dtype, quantize_int8(model) if dtype == "int8" else model.to(getattr(torch, dtype))


def reference(model: GPTModel, prompts: Ids) -> Ids:
    """Return the ids that float64 arithmetic chooses: of transformers, where it has the model."""
    config, found = model.config, []
    if model.tok_emb.weight.dtype != torch.float32 or isinstance(model.out_head, Int8Linear):
        ours = copy.deepcopy(model).double()
        logits_of: Callable = lambda ids: ours(torch.tensor([ids]))[0, -1]  # noqa: E731
    elif config.feed_forward == "mlp" and config.activation == "gelu_tanh" and not config.norm_unbiased:
        theirs = GPT2LMHeadModel(GPT2Config(**huggingface_config(config))).double().eval()
        state = huggingface_state(model)
        state = {name if name == "lm_head.weight" else f"transformer.{name}": state[name] for name in state}
        state.setdefault("lm_head.weight", state["transformer.wte.weight"])
        theirs.load_state_dict(state)
        logits_of = lambda ids: theirs(torch.tensor([ids])).logits[0, -1]  # noqa: E731
    else:
        ours = copy.deepcopy(model).double()
        logits_of = lambda ids: ours(torch.tensor([ids]))[0, -1]  # noqa: E731
    with torch.inference_mode():
        for prompt in prompts:
            ids = list(prompt)
            for _ in range(N_TOKENS):
                ids.append(int(logits_of(ids[-config.context_length :]).argmax()))
            found.append(ids[len(prompt) :])
    return found


def alone(engine: Engine, prompts: Ids, expected: Ids, n_draft: int, *, use_cache: bool = True) -> Ids:
    """Return the ids of each prompt by itself, with drafts of up to `n_draft` tokens, most of them right."""
    found = []
    for prompt, right in zip(prompts, expected, strict=True):
        speculator = ScriptedSpeculator([*prompt, *right], 5, n_draft) if n_draft else None
        tokens = decode(engine, prompt, N_TOKENS, use_cache=use_cache, speculator=speculator)
        found.append([token.token_id for token in tokens])
    return found


def in_batch(engine: Engine, prompts: Ids, size: int) -> Ids:
    """Return the ids of each prompt in a batch of `size`, with drafts where the engine takes them."""
    sequences = [SequenceState(list(p), N_TOKENS, speculator=Speculator(measures=False)) for p in prompts]
    waiting = list(sequences)
    decoder = BatchDecoder(engine, size)
    for _, token in decoder.decode(lambda n: [waiting.pop(0) for _i in waiting[:n]]):
        assert not isinstance(token, NumericsError)
    return [s.ids[len(p) :] for s, p in zip(sequences, prompts, strict=True)]


def paths(model: GPTModel, prompts: Ids, expected: Ids) -> Iterator[tuple[str, Ids]]:
    """Yield the name and the ids of every path."""
    for variant in library.usable_variants():
        library.force_variant(variant)
        for n_threads in (1, 2, 3, 4):
            engine, name = native_engine(model, n_threads), f"{variant}, {n_threads} threads"
            for n_draft in (0, 1, 4, 16):
                yield f"{name}, drafts of {n_draft}", alone(engine, prompts, expected, n_draft)
            for size in (3, 32):
                yield f"{name}, batch of {size}", in_batch(engine, prompts, size)
            if n_threads == 2:
                yield f"{name}, no cache", alone(engine, prompts[:8], expected[:8], 0, use_cache=False)
    if model.tok_emb.weight.dtype != torch.float32:
        return
    plain = TorchEngine(model)
    yield "PyTorch", alone(plain, prompts, expected, 0)
    yield "PyTorch, drafts of 4", alone(plain, prompts, expected, 4)
    yield "PyTorch, batch of 5", in_batch(plain, prompts, 5)


def main() -> int:
    draw = random.Random(0)
    prompts = [[draw.randrange(400) for _ in range(draw.randrange(1, 50))] for _ in range(N_PROMPTS)]
    counts: Counter[str] = Counter()
    for kind, model in models():
        expected = reference(model, prompts)
        by_kind: Counter[str] = Counter()
        for path, found in paths(model, prompts, expected):
            for i, (ids, right) in enumerate(zip(found, expected, strict=False)):
                by_kind["texts"] += 1
                if ids != right:
                    by_kind["unequal"] += 1
                    print(f"UNEQUAL: {kind}; {path}; prompt {i}: {ids} instead of {right}")
        print(f"{kind:32} {by_kind['texts']:6,} texts compared, {by_kind['unequal']} unequal", flush=True)
        counts += by_kind
    print(f"{counts['texts']:,} comparisons, {counts['unequal']} unequal")
    return 1 if counts["unequal"] else 0


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    sys.exit(main())
