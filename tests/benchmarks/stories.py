"""The figures of the model that ships: python -m tests.benchmarks.stories VALIDATION

Bits per byte on a text file (.xz too) for several strides, and the continuations of three prompts.
"""

import sys
import tempfile
from pathlib import Path

from gptcli.runtime import load
from gptcli.tokenizer import Tokenizer
from gptcli.train.data import map_tokens, write_tokens
from gptcli.train.evaluate import evaluate
from gptcli.weights.source import select_source
from tests.decoding import decode_tokens

PROMPTS = ("Once upon a time", "The old king said to his daughter,", "It was a dark night, and the wolf")


def main() -> None:
    source = select_source(preset="stories")
    ready = load(source, dtype="float32")
    config, tokenizer = ready.config, Tokenizer(ready.config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens"
        n_bytes = write_tokens([Path(sys.argv[1])], tokenizer, config.vocab_size, path)
        ids = map_tokens(path, config.vocab_size)
        for stride in (config.context_length, config.context_length // 2, config.context_length // 8):
            found = evaluate(ready.model, ids, n_bytes, max_length=config.context_length, stride=stride)
            print(
                f"stride {stride:4}: {found.nats_per_token:.4f} nats/token,"
                f" {found.bits_per_byte:.4f} bits/byte over {n_bytes:,} bytes, {len(ids):,} tokens"
            )
    for prompt in PROMPTS:
        steps = decode_tokens(ready.model, tokenizer.encode(prompt), 80)
        print(f"\n{prompt}{tokenizer.decode([step.token_id for step in steps])}")


if __name__ == "__main__":
    main()
