"""Text as training data: token files mapped into memory, and the tutorial's windows of them."""

import gzip
import lzma
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from gptcli.config.presets import resolve_options
from gptcli.decode.text_chunks import last_token_boundary
from gptcli.errors import ResourceError, UsageError
from gptcli.system.text_file import TextFile
from gptcli.tokenizer import END_OF_TEXT, Tokenizer

# Text is encoded in chunks of this size, so that a file larger than memory is never held whole. Without a
# space or line break in so many characters more, it is no text.
CHUNK_CHARACTERS, MAX_WORD_CHARACTERS = 1 << 20, 1 << 24
# A disk with less is full: a small compressed file may unpack to any size.
MIN_FREE_BYTES = 1 << 28

_OPENERS: dict[str, Callable[[Path, str], Any]] = {".xz": lzma.open, ".gz": gzip.open}

TokenIds = np.ndarray[Any, np.dtype[Any]]


def write_tokens(
    sources: Sequence[Path],
    tokenizer: Tokenizer,
    vocab_size: int,
    target: Path,
    *,
    option: str = "--data",
    note: Callable[[str], object] | None = None,
) -> int:
    """Encode text files into the token file `target` and return how many bytes of text that was.

    Files are UTF-8 (or what their byte order mark says), or `.xz` or `.gz` of it; `option` names them in
    errors and notes. A line `<|endoftext|>` separates documents; that token follows each document, and
    neither the line nor the line break before it counts as text. The token file holds plain little-endian ids
    of 2 or 4 bytes. Raises `UsageError` for a file that is not such text, `ResourceError` if its tokens do
    not fit on the disk.
    """
    n_bytes = 0
    with target.open("wb") as file:
        for source in sources:
            for chunk, ends_document in _chunks(option, source, note):
                try:
                    ids = tokenizer.encode(chunk, begins=False)
                except UsageError as error:
                    raise UsageError(f"{option} {source}: {error}") from None
                if ends_document and tokenizer.end_of_text is not None:
                    ids.append(tokenizer.end_of_text)
                n_bytes += len(chunk.encode())
                if (free := shutil.disk_usage(target.parent).free) < MIN_FREE_BYTES:
                    raise ResourceError(
                        f"{option} {source}: after {n_bytes:,} bytes of text the disk of {target.parent} has"
                        f" {free:,} bytes left; give less text, or a folder on another disk"
                    )
                np.array(ids, dtype=_dtype(vocab_size)).tofile(file)
    return n_bytes


def map_tokens(path: Path, vocab_size: int) -> TokenIds:
    """Return the ids of a token file, mapped into memory but not read."""
    if not path.stat().st_size:
        return np.empty(0, _dtype(vocab_size))
    return np.memmap(path, dtype=_dtype(vocab_size), mode="r")


class GPTDatasetV1(Dataset[tuple[Tensor, Tensor]]):
    """Windows of `max_length` ids, one every `stride` ids, each with the window that starts one id later.

    `txt` is a text for `tokenizer.encode`, or the ids themselves, which may be mapped. An item is (input,
    target), both int64 [max_length].
    """

    def __init__(self, txt: str | TokenIds, tokenizer: Any, max_length: int, stride: int) -> None:
        if max_length < 1 or stride < 1:
            raise ValueError(f"max_length {max_length} and stride {stride} must be 1 or more")
        self.ids = np.array(_encode(tokenizer, txt)) if isinstance(txt, str) else txt
        self.max_length, self.stride = max_length, stride

    def __len__(self) -> int:
        return len(range(0, len(self.ids) - self.max_length, self.stride))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.stride
        window = torch.from_numpy(self.ids[start : start + self.max_length + 1].astype(np.int64))  # [T + 1]
        return window[:-1], window[1:]  # [T], [T]


def create_dataloader_v1(
    txt: str | TokenIds,
    batch_size: int = 4,
    max_length: int = 256,
    stride: int = 128,
    shuffle: bool = True,
    drop_last: bool = True,
    num_workers: int = 0,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return the tutorial's loader of (input, target), both [batch_size, max_length] in GPT-2's encoding."""
    tokenizer = Tokenizer(resolve_options("gpt2-small", None, []).config)
    dataset = GPTDatasetV1(txt, tokenizer, max_length, stride)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, num_workers=num_workers
    )


class EndlessBatches(Sampler[list[int]]):
    """An endless sequence of batches of window indices, which depends on the seed alone.

    Each pass takes windows that tile the text once: if the stride is below `max_length`, one window in every
    max_length / stride, with another first window in each pass. A resumed run that starts at batch `start`
    gets the same batches as an uninterrupted one.
    """

    def __init__(self, dataset: GPTDatasetV1, batch_size: int, seed: int, start: int = 0) -> None:
        self.n_windows, self.batch_size, self.seed, self.start = len(dataset), batch_size, seed, start
        self.phases = max(1, dataset.max_length // dataset.stride)
        self.batches_per_pass = self.n_windows // self.phases // batch_size
        if self.batches_per_pass < 1:
            raise UsageError(
                f"--data: {self.n_windows // self.phases} windows of {dataset.max_length} tokens, and a batch"
                f" is {batch_size}; give more text, a smaller --batch-size or a smaller --max-length"
            )

    def __iter__(self) -> Iterator[list[int]]:
        batch = self.start
        while True:
            number, first = divmod(batch, self.batches_per_pass)
            order = self._order(number)
            for i in range(first, self.batches_per_pass):
                yield order[i * self.batch_size : (i + 1) * self.batch_size]
            batch = (number + 1) * self.batches_per_pass

    def _order(self, number: int) -> list[int]:
        """Return the window indices of one pass, shuffled."""
        cycle, turn = divmod(number, self.phases)
        phase = int(torch.randperm(self.phases, generator=self._generator(cycle, 0))[turn])
        windows = torch.arange(phase, self.n_windows, self.phases)
        return windows[torch.randperm(len(windows), generator=self._generator(number, 1))].tolist()

    def _generator(self, number: int, purpose: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + number) * 2 + purpose)


def _dtype(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def _encode(tokenizer: Any, txt: str) -> list[int]:
    """Encode with our tokenizer, or with tiktoken's, which the tutorial passes."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.encode(txt, begins=False)
    ids: list[int] = tokenizer.encode(txt, allowed_special={END_OF_TEXT})
    return ids


def _chunks(option: str, source: Path, note: Callable[[str], object] | None) -> Iterator[tuple[str, bool]]:
    """Yield a file's text in chunks that can be encoded separately, and whether each ends a document."""
    held, begun = "", False
    try:
        with _OPENERS.get(source.suffix, open)(source, "rb") as file:
            text = TextFile(option, source, None, file)
            for line in _lines(text.pieces()):
                if line.rstrip("\r\n") == END_OF_TEXT:
                    yield held.rstrip("\r\n"), True
                    held, begun = "", False
                    continue
                held += line
                if len(held) > CHUNK_CHARACTERS and (cut := last_token_boundary(held)):
                    yield held[:cut], False
                    held, begun = held[cut:], True
                if len(held) > CHUNK_CHARACTERS + MAX_WORD_CHARACTERS:
                    raise UsageError(
                        f"{option} {source}: not text: {len(held):,} characters without a space or line break"
                    )
        if begun or held.strip():
            yield held.rstrip("\r\n"), True
    except (lzma.LZMAError, EOFError, zlib.error) as error:
        raise UsageError(f"{option} {source}: corrupt or incomplete: {error}") from None
    except OSError as error:
        raise UsageError(f"{option} {source}: cannot be read: {error.strerror or error}") from None
    if note is not None and (replaced := text.note()) is not None:
        note(replaced)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in pieces, with their line breaks; a very long one in parts."""
    held = ""
    for piece in pieces:
        *whole, held = (held + piece).split("\n")
        yield from (f"{line}\n" for line in whole)
        if len(held) > CHUNK_CHARACTERS:
            yield held
            held = ""
    if held:
        yield held
