"""Models with another tokenizer than GPT-2's, on the command line and from Python."""

import json

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from gptcli.api import generate, load_model
from gptcli.cli import boundary
from gptcli.cli.train import PROGRAM, app
from tests.models import lively_model, save_huggingface, save_tutorial, tiny_config
from tests.tokenizer.made import gpt2_library, gpt2_style, llama2_style, save_pair, save_whole

PROMPT = "Once upon a time there was a king"


def save_model(folder, vocab_size, **changes):
    config = tiny_config(
        vocab_size=vocab_size, context_length=64, tie_embeddings=True, eos_token_id=None, bos_token_id=None
    )
    ids = {"bos_token_id": 0, "eos_token_id": 1} | changes
    return save_huggingface(lively_model(config), folder, **ids)


@pytest.fixture
def folder(tmp_path):
    """Save a GPT-2 with a vocabulary of 323 tokens of its own."""
    save_whole(gpt2_style(), tmp_path / "model", bos_token="<|startoftext|>", eos_token="<|endoftext|>")
    return save_model(tmp_path / "model", 323)


@pytest.fixture
def pieces_folder(tmp_path):
    """Save a GPT-2 with a SentencePiece-style vocabulary with byte fallback."""
    library = llama2_style()
    save_whole(library, tmp_path / "pieces", bos_token="<s>", eos_token="</s>")
    return save_model(tmp_path / "pieces", library.get_vocab_size(), bos_token_id=1, eos_token_id=2)


def greedy(folder, prompt, n):
    """Return the ids of a prompt and of its continuation, and both texts, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = GPT2LMHeadModel.from_pretrained(folder).double()
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        # With a mask, since a prompt may hold the token that pads.
        options = {"attention_mask": torch.ones_like(ids), "eos_token_id": None, "pad_token_id": 0}
        out = model.generate(ids, max_new_tokens=n, do_sample=False, **options)[0]
    text = tokenizer.decode(out, skip_special_tokens=False)
    return ids[0].tolist(), out[ids.shape[1] :].tolist(), text


@pytest.mark.parametrize("kind", ["folder", "pieces_folder"])
def test_ids_and_text_are_those_of_transformers(cli, request, kind):
    folder = request.getfixturevalue(kind)
    prompt_ids, ids, text = greedy(folder, PROMPT, 24)
    record = json.loads(cli("generate", PROMPT, "-w", folder, "-n", 24, "--ignore-eos", "--json").out)
    assert (record["prompt_ids"], record["completion_ids"]) == (prompt_ids, ids)
    assert text.endswith(record["completion"])
    assert record["model"]["tokenizer"] == str(folder / "tokenizer.json")
    streamed = cli("generate", PROMPT, "-w", folder, "-n", 24, "--ignore-eos", "--no-echo", "--quiet").out
    assert streamed == record["completion"] + "\n"


def test_a_batch_takes_it_as_well(cli, folder, tmp_path):
    (tmp_path / "p.txt").write_text(f"{PROMPT}\n<|startoftext|>a\n")
    result = cli("generate", "--input", tmp_path / "p.txt", "-w", folder, "-n", 9, "--ignore-eos", "--json")
    for line, prompt in zip(result.out.splitlines(), (PROMPT, "<|startoftext|>a"), strict=True):
        assert json.loads(line)["completion_ids"] == greedy(folder, prompt, 9)[1]


def test_one_is_named(cli, tmp_path):
    folder = save_model(tmp_path / "model", 323)
    save_pair(gpt2_style(), tmp_path / "pair")
    result = cli("generate", "a", "-w", folder, "--tokenizer", tmp_path / "pair", "--json", "-n", 2)
    record = json.loads(result.out)
    assert record["prompt_ids"] == gpt2_style().encode("a").ids
    assert record["model"]["tokenizer"] == str(tmp_path / "pair" / "vocab.json")
    assert result.err == ""


def test_gpt2s_own_files_say_so(cli, tmp_path):
    folder = save_model(tmp_path / "model", 50257)
    save_whole(gpt2_library(), folder)
    result = cli("generate", "Hello", "-w", folder, "--json", "-n", 2)
    assert (json.loads(result.out)["model"]["tokenizer"], result.err) == ("gpt2", "")


def test_a_small_vocabulary_without_a_tokenizer_gets_true_advice(cli, tmp_path):
    folder = save_model(tmp_path / "model", 323)
    result = cli("generate", "Hello, I am", "-w", folder)
    assert result.status == 2
    assert "the tokenizer (gpt2) is not the model's; put the model's own tokenizer.json next to" in result.err
    assert "no tokenizer next to the weights: GPT-2's is taken, with 50257 tokens" in result.err
    assert "vocab_size is 323" in result.err


@pytest.mark.parametrize(
    ("vocab_size", "status", "words"),
    [
        (323, 0, ""),
        (384, 0, ""),  # padded to a multiple of 64
        (1000, 0, "has 323 tokens, and the model's vocab_size is 1000: ids from 323 on have no text"),
        (300, 2, "it was added to the tokenizer"),
        (100, 2, "is not the model's; put the model's own tokenizer.json next to the weights"),
    ],
)
def test_a_vocabulary_larger_or_smaller_than_the_models(cli, tmp_path, vocab_size, status, words):
    folder = save_whole(gpt2_style(), tmp_path / "model")
    save_model(folder, vocab_size)
    last = gpt2_style().id_to_token(322).replace("Ġ", " ")
    result = cli("generate", last, "-w", folder, "-n", 1)
    assert result.status == status
    assert words in result.err if words else result.err == ""


@pytest.mark.parametrize("command", [("generate", "Hi", "-w"), ("inspect", "--prompt", "Hi", "-w")])
def test_a_folder_with_a_tokenizer_that_is_not_read_is_refused(cli, tmp_path, command):
    folder = save_model(tmp_path / "model", 50257)
    (folder / "spiece.model").write_bytes(b"\n\x0e")
    result = cli(*command, folder)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: {folder}/spiece.model: a vocabulary of SentencePiece")
    save_whole(gpt2_library(), tmp_path / "other")
    assert cli(*command, folder, "--tokenizer", tmp_path / "other").status == 0


class TestInspect:
    def test_a_weights_file_shows_its_tokenizer(self, cli, folder):
        text, record = cli("inspect", folder).out, json.loads(cli("inspect", folder, "--json").out)
        assert f"tokenizer: {folder}/tokenizer.json, 323 tokens" in text
        assert record["tokenizer"] == f"{folder}/tokenizer.json"

    def test_a_weights_file_with_a_broken_tokenizer_shows_the_fault(self, cli, folder):
        (folder / "tokenizer.json").write_text("{")
        result = cli("inspect", folder)
        assert result.status == 1
        assert "tokenizer.json: not a tokenizer's file" in result.out + result.err
        assert "wte.weight" in result.out

    def test_a_pass_shows_its_tokens(self, cli, folder):
        record = json.loads(cli("inspect", "-w", folder, "--prompt", "a king", "--json").out)
        assert record["tokenizer"] == f"{folder}/tokenizer.json"
        ids = gpt2_style().encode("a king").ids
        assert [token["id"] for token in record["tokens"]] == ids
        assert "".join(token["text"].strip("'") for token in record["tokens"]) == "a king"

    def test_numbers_need_no_tokenizer(self, cli, folder):
        result = cli("inspect", folder, "--tensor-stats", "--tokenizer", folder)
        assert (result.status, "--tokenizer is for texts" in result.err) == (2, True)


def test_from_python(folder, tmp_path):
    named = load_model(save_model(tmp_path / "bare", 323), tokenizer=folder)
    assert (
        generate(named, PROMPT, max_new_tokens=9).text
        == generate(load_model(folder), PROMPT, max_new_tokens=9).text
    )


def test_a_model_is_trained_on_it_and_is_whole_afterwards(cli, tmp_path, capfd):
    save_whole(gpt2_style(), tmp_path / "tokenizer", bos_token="<|startoftext|>", eos_token="<|endoftext|>")
    (tmp_path / "t.txt").write_text("once upon a time there was a king\n" * 60)
    sizes = {"n_layers": 1, "n_heads": 2, "emb_dim": 16, "context_length": 32}
    arguments = [item for size in sizes.items() for item in ("--set", "{}={}".format(*size))]
    arguments += [
        "--preset",
        "gpt2-small",
        "--tokenizer",
        tmp_path / "tokenizer",
        "--data",
        tmp_path / "t.txt",
    ]
    arguments += ["--output", tmp_path / "out", "--steps", 2, "--batch-size", 2, "--max-length", 16]
    assert boundary.run(app, PROGRAM, [str(each) for each in arguments]) == 0
    assert "in the tokenizer" not in capfd.readouterr().err
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["vocab_size"], config["bos_token_id"], config["eos_token_id"]) == (323, 0, 1)
    record = json.loads(cli("generate", PROMPT, "-w", tmp_path / "out", "-n", 5, "--json").out)
    assert record["model"]["tokenizer"] == str(tmp_path / "out" / "tokenizer.json")
    assert record["prompt_ids"] == greedy(tmp_path / "out", PROMPT, 5)[0]
    save_whole(llama2_style(), tmp_path / "tokenizer")
    again = [str(each) for each in [*arguments, "--resume", "--set", "vocab_size=323"]]
    before = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert boundary.run(app, PROGRAM, again) == 2
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == before


def test_a_run_with_another_tokenizer_does_not_continue_a_batch(cli, folder, tmp_path):
    (tmp_path / "p.txt").write_text("a\nb\n")
    command = (
        "generate",
        "--input",
        tmp_path / "p.txt",
        "--output",
        tmp_path / "o.jsonl",
        "-w",
        folder,
        "-n",
        2,
    )
    assert cli(*command).status == 0
    save_whole(llama2_style(), folder)
    result = cli(*command, "--resume")
    assert (result.status, "it had another tokenizer" in result.err) == (2, True)


def test_a_record_that_cannot_be_encoded_leaves_the_others(cli, folder, tmp_path, monkeypatch):
    from gptcli.tokenizer import file_encoding

    monkeypatch.setattr(file_encoding, "SMALL_TEXT", 100)
    monkeypatch.setattr(file_encoding, "BYTES_PER_BYTE", 1 << 40)
    (tmp_path / "p.txt").write_text("one\n" + "x" * 200 + "\nthree\n")
    result = cli("generate", "--input", tmp_path / "p.txt", "-w", folder, "-n", 2, "--json")
    records = [json.loads(line) for line in result.out.splitlines()]
    assert (result.status, ["error" in record for record in records]) == (1, [False, True, False])


def test_the_layout_of_the_tutorial_has_a_tokenizer_as_well(cli, tmp_path):
    config = tiny_config(vocab_size=323, context_length=32)
    folder = save_tutorial(lively_model(config), tmp_path / "model")
    save_whole(gpt2_style(), folder)
    record = json.loads(cli("generate", "a king", "-w", folder / "model.safetensors", "--json", "-n", 1).out)
    assert record["prompt_ids"] == gpt2_style().encode("a king").ids
