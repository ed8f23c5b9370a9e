"""The tokenizer files in a folder: those that are read, or one line that says what cannot be read."""

import json
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gptcli.config.files import LFS_POINTER
from gptcli.errors import UsageError, WeightsError

WHOLE = "tokenizer.json"
# A vocabulary with its merges, by the names of transformers, and by those of OpenAI's own release.
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Vocabularies that are not read, and what they are.
UNREAD = {
    "spiece.model": "SentencePiece",
    "sentencepiece.bpe.model": "SentencePiece",
    "spm.model": "SentencePiece",
    "tokenizer.model": "SentencePiece or tiktoken",
    "tiktoken.model": "tiktoken",
    "tekken.json": "tekken",
    "vocab.txt": "WordPiece",
}
# Every file that may belong to a tokenizer: for downloads and copies.
TOKENIZER_FILES = (WHOLE, *(name for pair in PAIRS for name in pair), *SETTINGS, *UNREAD)
# The largest ones, for 260,000 tokens, have 34 MB.
MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of one tokenizer: `vocabulary` is a whole `tokenizer.json`, or has its `merges` apart.

    `settings` are the files of `SETTINGS` next to it, by their names.
    """

    vocabulary: Path
    merges: Path | None = None
    settings: Mapping[str, Path] = field(default_factory=dict)

    @property
    def copies(self) -> dict[str, Path]:
        """Return each file by the name that it has next to weights."""
        if self.merges is None:
            return {WHOLE: self.vocabulary, **self.settings}
        return dict(zip(PAIRS[0], (self.vocabulary, self.merges), strict=True)) | dict(self.settings)


def named_tokenizer(path: Path) -> TokenizerFiles:
    """Return the tokenizer in the file or folder that `--tokenizer` names.

    Raises `UsageError` for a path without a tokenizer, `WeightsError` for one that is not read.
    """
    if not path.exists():
        raise UsageError(f"--tokenizer {path}: no such file or folder")
    if path.is_dir():
        found = find_tokenizer(path)
        if found is None:
            raise UsageError(
                f"--tokenizer {path}: neither {WHOLE} nor {' with '.join(PAIRS[0])} in this folder"
            )
        return found
    pair = next((pair for pair in PAIRS if path.name in pair), None)
    if pair is not None:
        return _pair(path.parent, pair)
    if path.name in UNREAD:
        raise WeightsError(_unread_message(path.parent, path.name))
    if path.suffix.lower() != ".json":
        raise UsageError(f"--tokenizer {path}: expected a {WHOLE}, or a folder with one")
    return TokenizerFiles(path, settings=settings_files(path.parent) if path.name == WHOLE else {})


def find_tokenizer(folder: Path) -> TokenizerFiles | None:
    """Return the tokenizer in the folder of a model's weights, or None if there is no file of one.

    Raises `WeightsError` for a folder with a tokenizer that is not read.
    """
    if (folder / WHOLE).exists():
        return TokenizerFiles(folder / WHOLE, settings=settings_files(folder))
    for pair in PAIRS:
        if any((folder / name).exists() for name in pair):
            return _pair(folder, pair)
    if unread := next((name for name in UNREAD if (folder / name).exists()), None):
        raise WeightsError(_unread_message(folder, unread))
    return None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of a tokenizer; raise `WeightsError` if it cannot be read."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise WeightsError(broken_message(path, str(error))) from None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a tokenizer's file; raise `WeightsError` if it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise WeightsError(f"{path}: not a regular file; a tokenizer is read from a file on disk")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise WeightsError(broken_message(path, f"more than {MAX_BYTES:,} bytes"))
    if data.startswith(LFS_POINTER):
        raise WeightsError(f"{path}: a Git LFS pointer, not the tokenizer; run git lfs pull to fetch it")
    return data


def broken_message(path: Path, reason: str) -> str:
    """Return the message for a file that is not what its name says."""
    return (
        f"{path}: not a tokenizer's file that can be read ({' '.join(reason.split())[:200]}); fetch it again,"
        " or name another tokenizer with --tokenizer"
    )


def settings_files(folder: Path) -> dict[str, Path]:
    """Return the settings in a folder, by their names."""
    return {name: folder / name for name in SETTINGS if (folder / name).is_file()}


def _pair(folder: Path, pair: tuple[str, str]) -> TokenizerFiles:
    for name, other in (pair, pair[::-1]):
        if not (folder / name).exists():
            raise WeightsError(
                f"{folder}: has {other} and no {name}; put that next to it, or name another tokenizer with"
                " --tokenizer"
            )
    return TokenizerFiles(folder / pair[0], folder / pair[1], settings_files(folder))


def _unread_message(folder: Path, name: str) -> str:
    python = (
        f"from transformers import AutoTokenizer as A; A.from_pretrained({str(folder)!r}).save_pretrained"
    )
    command = shlex.quote(f"{python}({str(folder)!r})")
    return (
        f"{folder / name}: a vocabulary of {UNREAD[name]}, which is not read, and there is no {WHOLE} next to"
        f" it; name one with --tokenizer, or write it with transformers:\npython -c {command}"
    )
