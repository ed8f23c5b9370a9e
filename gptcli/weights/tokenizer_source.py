"""The tokenizer of a model: files that are named or lie next to its weights, and how they fit the model."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gptcli.config.choices import GPT2_END_OF_TEXT
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ConfigSource

if TYPE_CHECKING:  # they import tiktoken
    from gptcli.tokenizer import Encoding
    from gptcli.tokenizer.files import TokenizerFiles


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer, with the files that it was read from."""

    files: "TokenizerFiles"
    encoding: "Encoding"

    @property
    def fingerprint(self) -> str:
        """Return `gpt2` for GPT-2's own tokenizer, or a hash of the files."""
        if self.encoding.name == "gpt2":
            return "gpt2"
        digest = hashlib.sha256()
        for name, path in sorted(self.files.copies.items()):
            digest.update(name.encode() + path.read_bytes())
        return digest.hexdigest()

    def copy_to(self, folder: Path) -> None:
        """Copy the files into a folder, each whole or not at all, by their names next to weights."""
        for name, path in self.files.copies.items():
            target, new = folder / name, folder / f".{name}.part"
            if not (target.exists() and target.samefile(path)):
                shutil.copyfile(path, new)
                new.replace(target)

    @property
    def config_source(self) -> ConfigSource:
        """Return the keys of a config that a new model gets from its tokenizer."""
        encoding = self.encoding
        values = {
            "vocab_size": encoding.n_tokens,
            "bos_token_id": encoding.begin_of_text,
            "eos_token_id": encoding.end_of_text,
            "tokenizer": "gpt2",
        }
        return ConfigSource("tokenizer", str(self.files.vocabulary), values)


def named_tokenizer(path: str | Path) -> TokenizerSource:
    """Return the tokenizer in a file or folder; raises `UsageError` if it has none, else `WeightsError`."""
    from gptcli.tokenizer.files import named_tokenizer
    from gptcli.tokenizer.load import load_encoding

    files = named_tokenizer(Path(path).expanduser())
    return TokenizerSource(files, load_encoding(files))


def folder_tokenizer(folder: Path) -> TokenizerSource | None:
    """Return the tokenizer in the folder of some weights, or None if there is no file of one.

    Raises `WeightsError` for a tokenizer that is not read.
    """
    from gptcli.tokenizer.files import find_tokenizer
    from gptcli.tokenizer.load import load_encoding, refuse_settings_alone

    files = find_tokenizer(folder)
    if files is None:
        refuse_settings_alone(folder)
        return None
    return TokenizerSource(files, load_encoding(files))


def size_notes(tokenizer: TokenizerSource | None, config: ModelConfig) -> Iterator[str]:
    """Yield a note if the tokenizer has another number of tokens than the model; a padded one has more."""
    from gptcli.tokenizer.tokenizer import PADDING, TAKE_ANOTHER

    V = config.vocab_size
    n = GPT2_END_OF_TEXT + 1 if tokenizer is None else tokenizer.encoding.n_tokens
    if n <= V < n + PADDING or (tokenizer is None and config.tokenizer != "gpt2"):
        return
    if tokenizer is None:
        yield (
            f"no tokenizer next to the weights: GPT-2's is taken, with {n} tokens, and the model's vocab_size"
            f" is {V}; {TAKE_ANOTHER}"
        )
        return
    name = f"the tokenizer {tokenizer.files.vocabulary} has {n} tokens, and the model's vocab_size is {V}"
    yield f"{name}: ids from {V} on are refused" if n > V else f"{name}: ids from {n} on have no text"
