"""The tokenizer in a folder gives the ids and the text that transformers' gives, whatever its files say."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GPT2Tokenizer

from gptcli.tokenizer import END_OF_TEXT, Encoding
from gptcli.tokenizer.file_encoding import FileEncoding
from gptcli.tokenizer.gpt2 import GPT2Encoding
from gptcli.weights.tokenizer_source import folder_tokenizer
from tests.tokenizer.made import (
    TEXT,
    gpt2_library,
    gpt2_style,
    gpt2_vocabulary,
    llama2_style,
    llama3_style,
    save_pair,
    save_whole,
    write_pair,
)

START, PAD = "<|startoftext|>", "<|pad|>"
TEXTS = [
    *TEXT[:4],
    *("", "a", " a", "  a  b ", "\n\nx", "日 本\u00e9\u0301\x00", "😀", "\ufeffa\u2028\t b"),
    *("<|endoftext|>a", f"{START}a {PAD} b{END_OF_TEXT}", "a <mask> b", "hello<user> hi <USER>"),
    *("</s>a", "<s>", " <s> a", "<|eot_id|>x", "<|begin_of_text|>"),
]


def named(content: str, **flags: object) -> dict[str, object]:
    return {
        "content": content,
        **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False),
        **flags,
    }


# The files next to GPT-2's own vocab.json and merges.txt.
SETTINGS = {
    "added tokens": {"added_tokens": {START: 50257, PAD: 50258}},
    "special tokens": {
        "special_tokens_map": {"bos_token": START, "eos_token": END_OF_TEXT, "pad_token": PAD}
    },
    "both": {
        "added_tokens": {START: 50257, PAD: 50258},
        "special_tokens_map": {"bos_token": START, "pad_token": PAD},
    },
    "tokens with flags": {
        "special_tokens_map": {
            "bos_token": named(END_OF_TEXT, normalized=True),
            "mask_token": named("<mask>", lstrip=True),
        }
    },
    "tokens by id": {
        "tokenizer_config": {
            "tokenizer_class": "GPT2Tokenizer",
            "added_tokens_decoder": {
                "50256": named(END_OF_TEXT, special=True, normalized=True),
                "50257": named("<mask>", special=True, lstrip=True),
                "50258": named("<user>", special=False, normalized=True),
            },
        }
    },
    "a space before": {"tokenizer_config": {"add_prefix_space": True}},
    "a token before": {"tokenizer_config": {"add_bos_token": True}},
}


def swapped(vocab: dict[str, int]) -> dict[str, int]:
    return vocab | {"Hello": vocab["the"], "the": vocab["Hello"]}


# Changes of the vocabulary and merges themselves.
VOCABULARIES = {
    "two ids swapped": lambda vocab, merges: (swapped(vocab), merges),
    "another order of merges": lambda vocab, merges: (vocab, [merges[1], merges[0], *merges[2:]]),
    "a merge less": lambda vocab, merges: (vocab, merges[:-1]),
    "a token more": lambda vocab, merges: (vocab | {START: 50257}, merges),
}


def write_settings(folder: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def encoding_of(folder: Path) -> Encoding:
    found = folder_tokenizer(folder)
    assert found is not None
    return found.encoding


def assert_same_ids(encoding: Encoding, reference) -> None:
    for text in TEXTS:
        assert encoding.encode(text, plain=False, begins=True) == reference(text)["input_ids"], text


@pytest.mark.parametrize("files", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_the_small_files_add_to_gpt2(tmp_path, files):
    write_pair(tmp_path, *gpt2_vocabulary())
    write_settings(tmp_path, files)
    encoding = encoding_of(tmp_path)
    assert isinstance(encoding, FileEncoding)
    assert_same_ids(encoding, GPT2Tokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("change", VOCABULARIES.values(), ids=VOCABULARIES.keys())
def test_a_vocabulary_that_is_almost_gpt2s(tmp_path, change):
    write_pair(tmp_path, *change(*gpt2_vocabulary()))
    encoding = encoding_of(tmp_path)
    assert isinstance(encoding, FileEncoding)
    assert_same_ids(encoding, GPT2Tokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("tokenizer_class", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("prefix", [False, True])
def test_the_class_decides_whether_a_space_comes_before(tmp_path, tokenizer_class, prefix):
    save_whole(gpt2_style(), tmp_path, tokenizer_class=tokenizer_class, add_prefix_space=prefix)
    assert_same_ids(encoding_of(tmp_path), AutoTokenizer.from_pretrained(tmp_path))


class TestGPT2sOwn:
    def test_its_files_are_served_by_tiktoken(self, tmp_path):
        save_whole(gpt2_library(), tmp_path, tokenizer_class="GPT2Tokenizer", bos_token=END_OF_TEXT)
        encoding = encoding_of(tmp_path)
        assert isinstance(encoding, GPT2Encoding)
        assert_same_ids(encoding, AutoTokenizer.from_pretrained(tmp_path))

    def test_so_are_vocabulary_and_merges_apart(self, tmp_path):
        write_pair(tmp_path, *gpt2_vocabulary())
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": END_OF_TEXT}))
        encoding = encoding_of(tmp_path)
        assert isinstance(encoding, GPT2Encoding)
        assert_same_ids(encoding, GPT2Tokenizer.from_pretrained(tmp_path))

    def test_and_openais_release(self, tmp_path):
        write_pair(tmp_path, *gpt2_vocabulary())
        (tmp_path / "vocab.json").rename(tmp_path / "encoder.json")
        (tmp_path / "merges.txt").rename(tmp_path / "vocab.bpe")
        assert isinstance(encoding_of(tmp_path), GPT2Encoding)

    @pytest.mark.parametrize(
        "edit",
        [
            lambda spec: spec.update(truncation=None, padding=None),
            lambda spec: spec["model"].update(merges=[" ".join(pair) for pair in spec["model"]["merges"]]),
            lambda spec: spec["model"].update(
                vocab=dict(sorted(spec["model"]["vocab"].items(), key=lambda item: item[0]))
            ),
        ],
        ids=["nothing", "merges as strings", "vocabulary in another order"],
    )
    def test_however_they_are_written(self, tmp_path, edit):
        save_whole(gpt2_library(), tmp_path)
        path = tmp_path / "tokenizer.json"
        spec = json.loads(path.read_text())
        edit(spec)
        path.write_text(json.dumps(spec))
        assert isinstance(encoding_of(tmp_path), GPT2Encoding)

    def test_a_token_more_is_another_tokenizer(self, tmp_path):
        library = gpt2_library()
        library.add_special_tokens([START])
        save_whole(library, tmp_path, bos_token=START)
        encoding = encoding_of(tmp_path)
        assert encoding.begin_of_text == 50257
        assert_same_ids(encoding, AutoTokenizer.from_pretrained(tmp_path))


def with_both_ends() -> Tokenizer:
    library = gpt2_style()
    library.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END_OF_TEXT}", special_tokens=[(START, 0), (END_OF_TEXT, 1)]
    )
    return library


def with_truncation() -> Tokenizer:
    library = gpt2_style()
    library.enable_truncation(3)
    library.enable_padding(length=9, pad_token=END_OF_TEXT)
    return library


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("▁a", -1.5), ("b", -3.0)]
    library = Tokenizer(models.Unigram(pieces, unk_id=0))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return library


def word_piece() -> Tokenizer:
    library = Tokenizer(
        models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, "once": 3, "x": 4}, unk_token="[UNK]")
    )
    library.pre_tokenizer, library.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return library


def with_added_words() -> Tokenizer:
    library = gpt2_style()
    library.add_tokens([AddedToken(" king", normalized=False), AddedToken("<mask>", lstrip=True)])
    return library


def in_a_sequence() -> Tokenizer:
    library = gpt2_style()
    library.decoder = decoders.Sequence([decoders.ByteLevel()])
    return library


WHOLE = {
    "byte-level, decoded by a sequence": in_a_sequence,
    "GPT-2's kind": gpt2_style,
    "Llama 3's kind": llama3_style,
    "Llama 2's kind": llama2_style,
    "a template with both ends": with_both_ends,
    "truncation and padding": with_truncation,
    "unigram": unigram,
    "WordPiece": word_piece,
    "added words": with_added_words,
}


@pytest.fixture(scope="module", params=WHOLE.values(), ids=WHOLE.keys())
def folder(request, tmp_path_factory):
    return save_whole(request.param(), tmp_path_factory.mktemp("tokenizer"))


class TestWholeFiles:
    def test_ids(self, folder):
        reference = AutoTokenizer.from_pretrained(folder)
        reference.backend_tokenizer.no_truncation()
        reference.backend_tokenizer.no_padding()
        assert_same_ids(encoding_of(folder), reference)

    def test_special_tokens_are_plain_text_on_demand(self, folder):
        encoding = encoding_of(folder)
        for text in TEXTS:
            ids = encoding.encode(text, plain=True, begins=False)
            added = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
            special = {i for i, token in added.items() if token.special and token.content != "<unk>"}
            assert special.isdisjoint(ids)

    def test_streamed_text_is_the_decoded_whole(self, folder):
        encoding, library = encoding_of(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text in TEXTS:
            ids = encoding.encode(text, plain=True, begins=False)
            stream = encoding.detokenizer(())
            streamed = b"".join([*map(stream.feed, ids), stream.close()]).decode("utf-8", "replace")
            assert streamed == library.decode(ids, skip_special_tokens=False), text

    def test_a_continuation_is_what_the_whole_text_adds_to_its_prompt(self, folder):
        encoding, library = encoding_of(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        for text in (TEXT[0], "a a b a", "once ab x a"):
            ids = encoding.encode(text, plain=True, begins=False)
            for n in range(1, len(ids)):
                stream = encoding.detokenizer(ids[:n])
                new = b"".join([*map(stream.feed, ids[n:]), stream.close()]).decode()
                prompt = library.decode(ids[:n], skip_special_tokens=False)
                assert prompt + new == library.decode(ids, skip_special_tokens=False)


def test_a_character_of_several_byte_tokens_comes_whole(tmp_path):
    encoding = encoding_of(save_whole(llama2_style(), tmp_path))
    ids = encoding.encode("a😀 b", plain=False, begins=False)
    stream = encoding.detokenizer(())
    pieces = [stream.feed(i).decode() for i in ids]
    assert "".join(pieces) == "a😀 b"
    assert any("😀" in piece for piece in pieces)


@pytest.mark.parametrize("between", [[], [100_000]], ids=["at once", "after an id without text"])
def test_a_word_after_a_prompt_keeps_its_space(tmp_path, between):
    library = llama2_style()
    encoding = encoding_of(save_whole(library, tmp_path))
    prompt = encoding.encode("Once upon", plain=False, begins=True)
    word = encoding.encode("a king", plain=False, begins=False)
    stream = encoding.detokenizer(prompt)
    assert b"".join([*map(stream.feed, between + word), stream.close()]) == b" a king"


class TestCharactersOfByteTokens:
    @pytest.mark.parametrize("text", ["漢字" * 6, "ééa" + "漢" * 8 + " b", "a 😀😀😀😀 c"])
    def test_a_prompt_may_end_in_any_number_of_them(self, tmp_path, text):
        library = llama2_style()
        encoding = encoding_of(save_whole(library, tmp_path))
        ids = encoding.encode(text, plain=False, begins=True)
        for n in range(2, len(ids)):
            prompt = library.decode(ids[:n])
            if "\ufffd" not in prompt:
                stream = encoding.detokenizer(ids[:n])
                assert prompt + b"".join([*map(stream.feed, ids[n:]), stream.close()]).decode() == text

    def test_broken_ones_do_not_spoil_the_prompt(self, tmp_path):
        encoding = encoding_of(save_whole(llama2_style(), tmp_path))
        prompt = encoding.encode("a 漢", plain=False, begins=True)
        broken = encoding.encode("漢", plain=False, begins=False)[1:2]
        broken += encoding.encode("b", plain=False, begins=False)
        stream = encoding.detokenizer(prompt)
        assert b"".join([*map(stream.feed, broken), stream.close()]).decode() == "\ufffd b"

    def test_half_a_character_at_the_end_is_written(self, tmp_path):
        encoding = encoding_of(save_whole(llama2_style(), tmp_path))
        ids = encoding.encode("a 漢", plain=False, begins=True)
        stream = encoding.detokenizer(ids[:-3])
        assert b"".join([*map(stream.feed, ids[-3:-1]), stream.close()]).decode() == "\ufffd\ufffd"


def test_a_pair_of_another_vocabulary(tmp_path):
    save_pair(gpt2_style(), tmp_path)
    assert_same_ids(encoding_of(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path))
