"""Scores by the native engine: python -m tests.benchmarks.scoring TEXT [--weights DIR] [--rounds N]

Bits a byte of a held-out text (.xz too) in every dtype, in windows that advance by half the context, next to
what `train`'s evaluation finds. Then the seconds for its first 400 kB, interleaved with the loop of
transformers' guide "Perplexity of fixed-length models".
"""

import argparse
import json
import lzma
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GPT2LMHeadModel

from gptcli.api import load_model, score_text
from gptcli.decode.scoring import score_windows, windows
from gptcli.runtime import LoadedModel
from gptcli.tokenizer import Tokenizer
from gptcli.train.data import map_tokens, write_tokens
from gptcli.train.evaluate import evaluate
from tests.benchmarks.timing import interleaved
from tests.models import save_huggingface

KINDS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "float32", "quantize": "int8"},
}
TIMED_CHARACTERS = 400_000


def bits_per_byte(model: LoadedModel, ids: Sequence[int], n_bytes: int) -> float:
    context = model.config.context_length
    scored = score_windows(model.engine, windows(ids, context, context // 2))
    return -sum(float(each.logprobs.sum()) for each in scored) / math.log(2) / n_bytes


@torch.inference_mode()
def transformers_nats(model: GPT2LMHeadModel, encodings: torch.Tensor, max_length: int, stride: int) -> float:
    """Return the sum of all losses, by the guide's loop."""
    seq_len = encodings.size(1)
    nats, prev_end_loc = 0.0, 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        input_ids = encodings[:, begin_loc:end_loc]
        target_ids = input_ids.clone()
        target_ids[:, :-trg_len] = -100
        nats += model(input_ids, labels=target_ids).loss.item() * int((target_ids[:, 1:] != -100).sum())
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return nats


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            model = load_model(options.weights, device="cpu", engine="native", **kind)
            if name == "float32":
                plain, tokens = model, Path(folder, "tokens")
                n_bytes = write_tokens(
                    [options.text], Tokenizer(model.config), model.config.vocab_size, tokens
                )
                ids = map_tokens(tokens, model.config.vocab_size)
                context = model.config.context_length
                trained = evaluate(model.model, ids, n_bytes, max_length=context, stride=context // 2)
                print(f"train's evaluation {trained.bits_per_byte:.4f} bits a byte, {len(ids):,} tokens")
            found[name] = bits_per_byte(model, ids.tolist(), n_bytes)
            print(f"{name:10} {found[name]:.4f} bits a byte", flush=True)
        data = options.text.read_bytes()
        text = (lzma.decompress(data) if options.text.suffix == ".xz" else data).decode()[:TIMED_CHARACTERS]
        theirs = GPT2LMHeadModel.from_pretrained(save_huggingface(plain.model, Path(folder, "hf"))).eval()
        encodings = torch.tensor([Tokenizer(plain.config).encode(text)])
        nats: dict[str, float] = {}

        def ours() -> float:
            start = time.perf_counter()
            nats["gptcli"] = score_text(plain, text).nats
            return time.perf_counter() - start

        def guide() -> float:
            start = time.perf_counter()
            nats["transformers"] = transformers_nats(theirs, encodings, context, context // 2)
            return time.perf_counter() - start

        seconds = interleaved({"gptcli": ours, "transformers": guide}, options.rounds)
    for name, median in seconds.items():
        print(f"{name:12} {median:.2f} s, {nats[name] / (encodings.numel() - 1):.6f} nats a token")
    print(json.dumps({"bits_per_byte": found, "seconds": seconds, "train": trained.bits_per_byte}))


if __name__ == "__main__":
    main()
