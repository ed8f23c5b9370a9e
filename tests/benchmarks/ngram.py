"""Bits per byte of a text under an order-5 byte model: python -m tests.benchmarks.ngram TRAIN VALIDATION

Each byte is predicted from the five before it, by Witten-Bell interpolation down to the uniform distribution
(Bell, Cleary & Witten 1990, "Text Compression", section 6.2, method C). Files may be .xz.
"""

import lzma
import sys
from pathlib import Path

import numpy as np

ORDER = 5


def main() -> None:
    train, validation = (read(Path(argument)) for argument in sys.argv[1:3])
    probability = np.full(len(validation), 1 / 256)
    for length in range(ORDER + 1):
        probability = interpolate(train, validation, length, probability)
    print(f"order-{ORDER} bytes: {-np.log2(probability).mean():.4f} bits/byte over {len(validation):,} bytes")


def read(path: Path) -> np.ndarray:
    data = path.read_bytes()
    data = lzma.decompress(data) if path.suffix == ".xz" else data
    return np.frombuffer(data, np.uint8).astype(np.int64)


def interpolate(train: np.ndarray, text: np.ndarray, length: int, shorter: np.ndarray) -> np.ndarray:
    """Return the probability of each byte of `text` after `length` bytes, mixed with shorter contexts."""
    pairs, pair_counts = np.unique(grams(train, length + 1), return_counts=True)
    contexts, first, distinct = np.unique(pairs >> 8, return_index=True, return_counts=True)
    totals = np.add.reduceat(pair_counts, first)
    wanted = grams(text, length + 1)
    count = look_up(pairs, pair_counts, wanted)
    total, kinds = look_up(contexts, totals, wanted >> 8), look_up(contexts, distinct, wanted >> 8)
    seen = total > 0
    mixed = shorter.copy()
    at = np.flatnonzero(seen) + length  # the first bytes have no context of this length
    mixed[at] = (count[seen] + kinds[seen] * shorter[at]) / (total[seen] + kinds[seen])
    return mixed


def grams(data: np.ndarray, n: int) -> np.ndarray:
    """Return every run of n bytes as one number, in order."""
    runs = np.zeros(len(data) - n + 1, np.int64)
    for offset in range(n):
        runs = (runs << 8) | data[offset : offset + len(runs)]
    return runs


def look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each wanted key, 0 for a missing one; `keys` are sorted."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


if __name__ == "__main__":
    main()
