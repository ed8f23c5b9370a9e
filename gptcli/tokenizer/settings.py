"""What the small files next to a vocabulary add to it: tokens, and the names of special ones.

They are read as transformers reads them (`tokenization_utils_base.py`, `_from_pretrained`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gptcli.errors import WeightsError
from gptcli.tokenizer.files import SETTINGS, TokenizerFiles, broken_message, read_json

CONFIG, SPECIAL, ADDED = SETTINGS
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LISTS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text before all others; `id` is None where the files do not say it.

    `flags` are those of the tokenizers library.
    """

    content: str
    id: int | None = None
    special: bool = True
    flags: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a tokenizer: added tokens in the order in which they get ids; None is not declared."""

    added: tuple[AddedToken, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    adds_prefix_space: bool | None = None
    adds_begin: bool = False
    tokenizer_class: str | None = None

    @property
    def is_gpt2_class(self) -> bool:
        """Return whether transformers would take its class for GPT-2's."""
        return self.tokenizer_class in (None, "GPT2Tokenizer", "GPT2TokenizerFast")


def read_settings(files: TokenizerFiles, defaults: Mapping[str, str]) -> TokenizerSettings:
    """Return the settings in a tokenizer's files; `defaults` are named tokens that need not be declared.

    Raises `WeightsError` for a file that is not what its name says.
    """
    config, special, added = (_read_object(files, name) for name in SETTINGS)
    try:
        decoder = config.get("added_tokens_decoder")
        values = {**defaults, **config} if decoder is not None else {**defaults, **config, **special}
        named = [(key, _token(values[key])) for key in NAMED if values.get(key) is not None]
        extra = [_token(value) for key in LISTS for value in _items(values.get(key))]
        special_tokens = [*(token for _, token in named), *extra]
        if decoder is not None:
            declared = [_token(value, int(key)) for key, value in decoder.items()]
        else:
            specials = {token.content for token in special_tokens}
            declared = [
                AddedToken(text, _id(i), text in specials, {"normalized": text not in specials})
                for text, i in added.items()
            ]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        names = ", ".join(files.settings)
        raise WeightsError(broken_message(files.vocabulary.parent, f"{names}: {error}")) from None
    declared.sort(key=lambda token: token.id or 0)
    contents = {token.content for token in declared}
    prefix_space, begin = config.get("add_prefix_space"), config.get("add_bos_token")
    kind = config.get("tokenizer_class")
    return TokenizerSettings(
        (*declared, *(token for token in special_tokens if token.content not in contents)),
        {key: token.content for key, token in named},
        prefix_space if isinstance(prefix_space, bool) else None,
        begin is True,
        kind if isinstance(kind, str) else None,
    )


def _read_object(files: TokenizerFiles, name: str) -> dict[str, Any]:
    if name not in files.settings:
        return {}
    found = read_json(files.settings[name])
    if not isinstance(found, dict):
        raise WeightsError(broken_message(files.settings[name], "not a JSON object"))
    return found


def _token(value: Any, token_id: int | None = None) -> AddedToken:
    """Return a special token that is declared by its text, or by its text with flags."""
    if isinstance(value, str):
        return AddedToken(value, token_id)
    flags = {name: bool(value[name]) for name in FLAGS if name in value}
    content = value["content"]
    if not isinstance(content, str):
        raise TypeError(f"a token's content is {content!r}")
    special = bool(value.get("special", False)) if token_id is not None else True
    return AddedToken(content, token_id, special, flags)


def _items(values: Any) -> Iterator[Any]:
    """Yield the items of a list, or of a mapping from names to tokens."""
    yield from values.values() if isinstance(values, dict) else values or ()


def _id(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} is no id")
    return value
