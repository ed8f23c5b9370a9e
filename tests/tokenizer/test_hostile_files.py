"""Tokenizer files that the library cannot use: one error, and never a panic, an abort or random ids."""

import copy
import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from gptcli.decode.options import GenerationOptions
from gptcli.decode.request import prepare_request
from gptcli.errors import WeightsError
from gptcli.tokenizer import Encoding
from gptcli.tokenizer import Tokenizer as OurTokenizer
from gptcli.tokenizer.files import TokenizerFiles
from gptcli.tokenizer.load import load_encoding
from tests.models import tiny_config

TEXTS = ["Once upon a time there was a king, and the king's daughter.", "two  spaces\n"]


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """Return a byte-level tokenizer.json with a begin token, as a dictionary."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return dict(json.loads(library.to_str()))


def load(spec: dict[str, Any], tmp_path) -> Encoding:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    return load_encoding(TokenizerFiles(path))


def test_a_prefix_that_merges_lack_is_refused_and_does_not_end_the_process(spec, tmp_path):
    changed = copy.deepcopy(spec)
    changed["model"]["continuing_subword_prefix"] = "##"
    with pytest.raises(WeightsError, match="lacks the continuing_subword_prefix '##'"):
        load(changed, tmp_path)


def test_a_panic_of_the_library_is_one_error_without_its_messages(spec, tmp_path, capfd):
    changed = copy.deepcopy(spec)
    changed["post_processor"]["special_tokens"] = {}  # its template names one
    with pytest.raises(WeightsError, match=r"tokenizer\.json: not a tokenizer's file that can be read"):
        load(changed, tmp_path)
    assert capfd.readouterr().err == ""


def test_dropout_of_merges_does_not_make_ids_random(spec, tmp_path):
    plain = load(spec, tmp_path).encode(TEXTS[0], plain=False, begins=True)
    changed = copy.deepcopy(spec)
    changed["model"]["dropout"] = 0.5
    encoding = load(changed, tmp_path)
    assert all(encoding.encode(TEXTS[0], plain=False, begins=True) == plain for _ in range(10))


def test_the_note_on_an_empty_prompt_names_the_begin_token_of_the_files(spec, tmp_path):
    tokenizer = OurTokenizer(tiny_config(vocab_size=300), load(spec, tmp_path))
    request = prepare_request("", tokenizer, tiny_config(vocab_size=300), GenerationOptions())
    assert request.prompt_ids == (0,)
    assert request.note() == "the prompt is empty; decoding starts from <s>"


def test_a_word_after_unknown_tokens_keeps_its_space(tmp_path):
    library = Tokenizer(models.WordLevel({"[UNK]": 0, "king": 1}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["[UNK]"])
    encoding = load(json.loads(library.to_str()), tmp_path)
    prompt = encoding.encode("once upon", plain=False, begins=True)
    assert prompt == [0, 0]
    stream = encoding.detokenizer(prompt)
    assert b"".join([stream.feed(1), stream.feed(0), stream.close()]) == b" king [UNK]"
