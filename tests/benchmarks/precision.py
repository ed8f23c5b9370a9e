"""The cost of 16 and 8 bits on trained weights: python -m tests.benchmarks.precision TEXT [--weights DIR]

Bits a byte of a held-out text (as the stories' card measures them, in windows without overlap), and how often
the most probable next token is float32's. The model is the one that ships unless weights are given.
"""

import argparse
import json
import lzma
from pathlib import Path

import torch

from gptcli.runtime import load
from gptcli.tokenizer import Tokenizer
from gptcli.weights.source import select_source

KINDS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"quantize": True},
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    data = options.text.read_bytes()
    text = (lzma.decompress(data) if options.text.suffix == ".xz" else data).decode()
    source = select_source(options.weights)
    tokenizer = Tokenizer(source.config)
    ids = tokenizer.encode(text)[: options.tokens]
    n_bytes = len(tokenizer.decode(ids).encode())
    windows = torch.tensor(ids[: len(ids) // source.config.context_length * source.config.context_length])
    windows = windows.view(-1, source.config.context_length)
    best, found = {}, {}
    for name, kind in KINDS.items():
        ready = load(source, device="cpu", **({"dtype": "float32"} | kind))
        nats, tops = 0.0, []
        for batch in windows.split(8):
            logits = ready.model(batch).float()
            logprobs = logits[:, :-1].log_softmax(-1)
            nats -= logprobs.gather(-1, batch[:, 1:, None]).sum().item()
            tops.append(logits.argmax(-1))
        best[name] = torch.cat(tops)
        same = (best[name] == best["float32"]).float().mean().item()
        found[name] = {"bits_per_byte": nats / n_bytes / 0.6931471805599453, "same_token": same}
        print(f"{name:10} {found[name]['bits_per_byte']:.4f} bits a byte, {same:.2%} of tokens as in float32")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
