"""Small tokenizers of the kinds that people have, and GPT-2's files, from the vocabulary that ships."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from gptcli.tokenizer import END_OF_TEXT, read_ranks
from gptcli.tokenizer.file_encoding import BYTE_OF

TEXT = [
    "Once upon a time there was a king who had three daughters, and the youngest was the fairest.",
    "Die schöne Königstochter saß im Garten; über ihr flog ein Rabe. naïve café, 12345 + 678 = 13023.",
    "def main():\n    print('it\\'s there')\n\n\treturn 0\n",
    "漢字と仮名 日本語 русский текст 😀 🏳️‍🌈",
] * 4
# Llama 3's pattern. Source: tokenizer.json of meta-llama/Meta-Llama-3-8B.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def _trained(library: Tokenizer, vocab_size: int, specials: list[str], alphabet: list[str]) -> Tokenizer:
    trainer = BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXT, trainer)
    return library


def gpt2_style(vocab_size: int = 323) -> Tokenizer:
    """Return a byte-level BPE of another vocabulary than GPT-2's."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return _trained(
        library, vocab_size, ["<|startoftext|>", END_OF_TEXT], pre_tokenizers.ByteLevel.alphabet()
    )


def llama3_style() -> Tokenizer:
    """Return a byte-level BPE with Llama 3's pattern, and a token that begins every text."""
    library = Tokenizer(models.BPE(ignore_merges=True))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    _trained(library, 400, [], pre_tokenizers.ByteLevel.alphabet())
    library.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    begin = ("<|begin_of_text|>", library.token_to_id("<|begin_of_text|>"))
    library.post_processor = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    return library


def llama2_style() -> Tokenizer:
    """Return a SentencePiece-style BPE with byte fallback, as those of Llama 2 and Mistral."""
    specials = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    _trained(trained, 200, specials, [])
    model = json.loads(trained.to_str())["model"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [token for token in model["vocab"] if token not in specials and not set(token) & set("漢字😀ß")]
    vocab = {token: i for i, token in enumerate([*specials, *byte_tokens, *letters])}
    merges = [tuple(m) for m in model["merges"] if {*m, "".join(m)} <= set(vocab)]
    library = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    return library


def save_whole(library: Tokenizer, folder: Path, **settings: object) -> Path:
    """Write `tokenizer.json` and `tokenizer_config.json` into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def save_pair(library: Tokenizer, folder: Path) -> Path:
    """Write `vocab.json` and `merges.txt` into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads(library.to_str())["model"]
    write_pair(folder, model["vocab"], [" ".join(pair) for pair in model["merges"]])
    return folder


def write_pair(folder: Path, vocab: dict[str, int], merges: list[str]) -> None:
    """Write a vocabulary and its merges as transformers does."""
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = "\n".join(["#version: 0.2", *merges, ""])
    (folder / "merges.txt").write_text(lines, encoding="utf-8")


@cache
def gpt2_vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return GPT-2's own vocabulary and merges, as `vocab.json` and `merges.txt` hold them.

    The merge that makes a token joins the two parts that the merges before it leave of its bytes.
    """
    ranks = {token: rank for rank, token in enumerate(read_ranks())}
    spelled = {token: "".join(CHARACTER_OF[byte] for byte in token) for token in ranks}
    merges = [
        " ".join(spelled[part] for part in _parts(token, rank, ranks))
        for token, rank in ranks.items()
        if len(token) > 1
    ]
    return {spelled[token]: rank for token, rank in ranks.items()} | {END_OF_TEXT: len(ranks)}, merges


def _parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        lowest, i = min(pairs)
        assert lowest < rank
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def gpt2_library() -> Tokenizer:
    """Return GPT-2's own tokenizer as the `tokenizers` library has it."""
    vocab, merges = gpt2_vocabulary()
    pairs = [tuple(line.split(" ")) for line in merges]
    library = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.add_special_tokens([END_OF_TEXT])
    return library
