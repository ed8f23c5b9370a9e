"""From tokenizer files to an encoding; the tokenizers library is imported only for others than GPT-2's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptcli.errors import WeightsError
from gptcli.tokenizer.files import (
    WHOLE,
    TokenizerFiles,
    broken_message,
    read_bytes,
    read_json,
    settings_files,
)
from gptcli.tokenizer.gpt2 import END_OF_TEXT, GPT2Encoding
from gptcli.tokenizer.gpt2_files import is_gpt2_json, is_gpt2_pair
from gptcli.tokenizer.limits import without_panic_messages
from gptcli.tokenizer.settings import AddedToken, TokenizerSettings, read_settings
from gptcli.tokenizer.tokenizer import Encoding

if TYPE_CHECKING:
    import tokenizers

# The special tokens of GPT2Tokenizer in transformers, unless its files name others.
GPT2_NAMED = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
# A text that shows at once whether the library can use what it has read.
PROBE = "Hello, I am\n\n  12 é"


def refuse_settings_alone(folder: Path) -> None:
    """Raise `WeightsError` for a folder without a vocabulary where settings tell of another than GPT-2's."""
    files = TokenizerFiles(folder / WHOLE, settings=settings_files(folder))
    settings = read_settings(files, {})
    others = [token.content for token in settings.added if token.content != END_OF_TEXT]
    if not settings.is_gpt2_class:
        others.insert(0, f"a {settings.tokenizer_class}")
    if others:
        raise WeightsError(
            f"{folder}: {' and '.join(files.settings)} name {others[0]}, and there is no {WHOLE}; put it next"
            " to the weights, or name one with --tokenizer"
        )


def load_encoding(files: TokenizerFiles) -> Encoding:
    """Return the encoding of tokenizer files: GPT-2's own if it is theirs.

    Raises `WeightsError` for files that are not those of a tokenizer.
    """
    try:
        with without_panic_messages():
            encoding = _load_whole(files) if files.merges is None else _load_pair(files, files.merges)
            _probe(encoding)
    except (WeightsError, MemoryError):
        raise
    except BaseException as error:  # the library raises Exception itself, and Rust panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise WeightsError(broken_message(files.vocabulary, str(error))) from None
    return encoding


def _probe(encoding: Encoding) -> None:
    """Use an encoding, so that the library fails now if it cannot, and not in the midst of a text."""
    stream = encoding.detokenizer(encoding.encode(PROBE, plain=False, begins=True))
    for token_id in range(min(encoding.n_tokens, 8)):
        stream.feed(token_id)


def _load_whole(files: TokenizerFiles) -> Encoding:
    text = read_bytes(files.vocabulary)
    spec = json.loads(text)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise ValueError("it has no model")
    settings = read_settings(files, {})
    if is_gpt2_json(spec, settings):
        return GPT2Encoding()
    _check_prefix(spec["model"])
    import tokenizers

    library = tokenizers.Tokenizer.from_buffer(text)
    if isinstance(library.model, tokenizers.models.BPE):
        library.model.dropout = None  # it makes training harder, and a text's ids random
    is_byte_level = isinstance(library.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel)
    if settings.adds_prefix_space is not None and is_byte_level and settings.is_gpt2_class:
        library.pre_tokenizer.add_prefix_space = settings.adds_prefix_space
    return _finish(library, files, settings)


def _check_prefix(model: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a merge that is shorter than the prefix it must have: it ends the process."""
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or not str(pair[-1:] and pair[-1]).startswith(prefix):
            raise ValueError(f"the merge {merge!r} lacks the continuing_subword_prefix {prefix!r}")


def _load_pair(files: TokenizerFiles, merges_path: Path) -> Encoding:
    """Load a vocabulary and merges as transformers loads those of a GPT-2."""
    vocab = read_json(files.vocabulary)
    merges = _read_merges(merges_path)
    settings = read_settings(files, GPT2_NAMED)
    if is_gpt2_pair(vocab, merges, settings):
        return GPT2Encoding()
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    if not isinstance(vocab, dict) or not all(isinstance(i, int) for i in vocab.values()):
        raise ValueError("not a mapping from tokens to ids")
    vocab |= {token.content: token.id for token in settings.added if token.id is not None}
    pairs = [_split_merge(line, merges_path) for line in merges]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.adds_prefix_space))
    library.decoder = decoders.ByteLevel()
    return _finish(library, files, settings)


def _finish(library: tokenizers.Tokenizer, files: TokenizerFiles, settings: TokenizerSettings) -> Encoding:
    """Add what the settings declare to a tokenizer of the library."""
    from gptcli.tokenizer.file_encoding import FileEncoding

    known = {token.content for token in library.get_added_tokens_decoder().values()}
    for token in settings.added:
        if token.content not in known and token.content:
            library.add_tokens([_library_token(token)])
        held = library.token_to_id(token.content)
        if token.id is not None and held != token.id:
            raise WeightsError(
                f"{files.vocabulary}: {token.content!r} gets id {held} here, and {token.id} in"
                f" {' or '.join(files.settings)}; fetch all of these files again"
            )
    if settings.adds_begin and files.merges is not None and "bos_token" in settings.named:
        from tokenizers.processors import TemplateProcessing

        begin = settings.named["bos_token"]
        library.post_processor = TemplateProcessing(
            single=f"{begin}:0 $A:0", special_tokens=[(begin, library.token_to_id(begin))]
        )
    ids = (_named_id(library, settings.named.get(key)) for key in ("bos_token", "eos_token"))
    return FileEncoding(library, str(files.vocabulary), *ids)


def _named_id(library: tokenizers.Tokenizer, name: str | None) -> int | None:
    """Return the id of a token that the files name, or of `<|endoftext|>`, or None."""
    ids = (library.token_to_id(text) for text in (name, END_OF_TEXT) if text is not None)
    found: int | None = next((i for i in ids if i is not None), None)
    return found


def _library_token(token: AddedToken) -> tokenizers.AddedToken:
    import tokenizers

    flags: dict[str, Any] = {"normalized": not token.special, **token.flags}
    return tokenizers.AddedToken(token.content, special=token.special, **flags)


def _read_merges(path: Path) -> list[str]:
    """Return the lines of `merges.txt`, without its first, which names the format's version."""
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise WeightsError(broken_message(path, str(error))) from None
    lines = [line.removesuffix("\r") for line in lines]
    return [line for line in lines[lines[0].startswith("#version") :] if line]


def _split_merge(line: str, path: Path) -> tuple[str, str]:
    first, space, second = line.partition(" ")
    if not space or not first or not second or " " in second:
        raise WeightsError(broken_message(path, f"expected two tokens in a line, got {line!r}"))
    return first, second
