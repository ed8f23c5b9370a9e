"""`gptcli generate` as a user sees it: prompt in, text out, and messages for wrong usage."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from gptcli.cli import bounded
from tests.models import lively_model, save_huggingface, save_tutorial, scripted_model, tiny_config

A, B, C, EOT = 64, 65, 66, 50256  # "a", "b", "c"
NOTE = "note: the weights are random (seed 123), so the text is noise; --weights loads real ones\n"


@pytest.fixture
def scripted(tmp_path):
    """Return a function that saves a model which follows a script of ids, in a folder."""

    def save(script: dict[int, int], **changes: object):
        return save_tutorial(scripted_model(script, **changes), tmp_path / "scripted")

    return save


class TestPrompt:
    def test_a_pipe_without_an_end_is_wrong_usage(self, cli, scripted, monkeypatch):
        monkeypatch.setattr(bounded, "MAX_PROMPT_BYTES", 1000)
        result = cli("generate", "-w", scripted({A: B}), stdin=b"a" * 1001)
        assert (result.status, result.out) == (2, "")
        assert "error: stdin: more than" in result.err
        assert cli("generate", "-w", scripted({A: B}), "-n", 1, stdin=b"a" * 1000).status == 0

    def test_the_prompt_and_its_continuation_then_one_newline(self, cli, scripted):
        result = cli("generate", "a", "-w", scripted({A: B, B: C, C: A}), "-n", 4)
        assert (result.status, result.out, result.err) == (0, "abcab\n", "")

    def test_no_echo_gives_the_continuation_alone(self, cli, scripted):
        assert cli("generate", "a", "-w", scripted({A: B, B: C}), "-n", 2, "--no-echo").out == "bc\n"

    @pytest.mark.parametrize("arguments", [["-"], []])
    def test_stdin_is_read_without_its_final_newline(self, cli, scripted, arguments):
        folder = scripted({A: B, B: C, C: A})
        for data in (b"a", b"a\n", b"a\r\n"):
            assert cli("generate", *arguments, "-w", folder, "-n", 1, stdin=data).out == "ab\n"
        assert cli("generate", *arguments, "-w", folder, "-n", 0, stdin=b"a\n\n").out == "a\n\n"

    def test_with_an_argument_stdin_is_not_read(self, cli, scripted):
        assert cli("generate", "a", "-w", scripted({A: B}), "-n", 1, stdin=None).out == "ab\n"

    def test_no_prompt_on_a_terminal_is_wrong_usage(self, cli):
        result = cli("generate", terminal=True)
        assert result.status == 2
        assert "no prompt" in result.err

    def test_several_prompts_are_wrong_usage_and_quotes_are_suggested(self, cli):
        result = cli("generate", "Hello,", "I", "am")
        assert result.status == 2
        assert "'Hello, I am'" in result.err

    @pytest.mark.parametrize(("arguments", "stdin"), [([""], None), (["-"], b""), (["-"], b"\n")])
    def test_an_empty_prompt_starts_from_end_of_text_both_ways(self, cli, scripted, arguments, stdin):
        result = cli("generate", *arguments, "-w", scripted({EOT: A, A: B}), "-n", 2, "--json", stdin=stdin)
        record = json.loads(result.out)
        assert (record["prompt"], record["prompt_ids"], record["completion"]) == ("", [EOT], "ab")
        assert "the prompt is empty; decoding starts from <|endoftext|>" in result.err

    def test_an_empty_prompt_for_a_model_without_a_begin_token_is_wrong_usage(self, cli, scripted):
        folder = scripted({A: B}, bos_token_id=None)
        result = cli("generate", "", "-w", folder)
        assert result.status == 2
        assert "no token that begins a text (bos_token_id)" in result.err

    def test_an_empty_prompt_starts_from_the_begin_token_and_any_end_token_ends(self, cli, scripted):
        folder = scripted({A: B, B: EOT, EOT: A}, bos_token_id=B, eos_token_id=[A, 7])
        result = cli("generate", "", "-w", folder, "-n", 9, "--json")
        record = json.loads(result.out)
        assert (record["prompt_ids"], record["completion_ids"]) == ([B], [EOT, A])
        assert (record["completion"], record["finish_reason"]) == ("<|endoftext|>", "eos")
        assert "decoding starts from b" in result.err
        record = json.loads(cli("generate", "", "-w", folder, "-n", 9, "--json", "--ignore-eos").out)
        assert record["completion_ids"][:5] == [EOT, A, B, EOT, A]

    def test_end_of_text_in_a_prompt_is_one_token_unless_plain(self, cli, scripted):
        folder = scripted({A: B})
        arguments = ("generate", "a<|endoftext|>a", "-w", folder, "-n", 1, "--json")
        record = json.loads(cli(*arguments).out)
        assert record["prompt_ids"] == [A, EOT, A]
        assert record["prompt"] == "a<|endoftext|>a"
        plain = json.loads(cli(*arguments, "--plain-prompt").out)
        assert plain["prompt_ids"] == [A, 27, 91, 437, 1659, 5239, 91, 29, A]

    def test_bytes_that_are_not_utf8_are_replaced_with_a_note(self, cli, scripted):
        folder = scripted({A: B})
        for result in (
            cli("generate", os.fsdecode(b"\xff\xfe a"), "-w", folder, "-n", 0),
            cli("generate", "-", "-w", folder, "-n", 0, stdin=b"\xfe\xfe a"),
        ):
            assert result.out == "\ufffd\ufffd a\n"
            assert "not all UTF-8" in result.err

    def test_a_prompt_with_ids_that_the_model_lacks_is_wrong_usage(self, cli, tiny_config_file):
        result = cli("generate", "Hi", "-c", tiny_config_file, "--set", "vocab_size=100")
        assert result.status == 2
        assert "'Hi' has id 17250, and this model's vocab_size is 100" in result.err

    @pytest.mark.parametrize("prompt", ["- item one", "-5 degrees", "--- x"])
    def test_a_prompt_that_begins_with_a_dash_needs_two_dashes_before_it(self, cli, tiny_config_file, prompt):
        result = cli("generate", prompt, "-c", tiny_config_file)
        assert result.status == 2
        assert f"put -- before a prompt that begins with a dash: gptcli generate -- {prompt!r}" in result.err
        result = cli("generate", "-c", tiny_config_file, "-n", 0, "--", prompt)
        assert (result.status, result.out) == (0, prompt + "\n")

    @pytest.mark.parametrize(
        "prompt", ["a [bold]b[/bold] [/INST] :smile:", "two\nlines\t", "x" * 300, "中文 😀", "\x1b[31mred"]
    )
    def test_text_is_written_raw(self, cli, tiny_config_file, prompt):
        assert cli("generate", prompt, "-c", tiny_config_file, "-n", 0).out == prompt + "\n"


class TestEnd:
    def test_end_of_text_stops_and_is_not_printed(self, cli, scripted):
        folder = scripted({A: B, B: EOT, EOT: C, C: A})
        record = json.loads(cli("generate", "a", "-w", folder, "--json", "--logprobs").out)
        assert record["completion"] == "b"
        assert record["completion_ids"] == [B, EOT]
        assert record["finish_reason"] == "eos"
        assert len(record["logprobs"]) == 2
        on = json.loads(cli("generate", "a", "-w", folder, "--json", "--ignore-eos", "-n", 4).out)
        assert on["completion_ids"] == [B, EOT, C, A]
        assert on["completion"] == "b<|endoftext|>ca"
        assert on["finish_reason"] == "length"

    def test_a_stop_string_is_found_across_tokens_and_not_printed(self, cli, scripted):
        folder = scripted({A: B, B: C, C: A})
        record = json.loads(cli("generate", "c", "-w", folder, "--stop", "ca", "--stop", "zz", "--json").out)
        assert (record["completion"], record["finish_reason"]) == ("ab", "stop")
        assert record["completion_ids"] == [A, B, C, A]
        assert cli("generate", "c", "-w", folder, "--stop", "ca").out == "cab\n"

    def test_a_stop_string_in_the_prompt_alone_stops_nothing(self, cli, scripted):
        folder = scripted({A: B, B: C, C: A})
        assert cli("generate", "c", "-w", folder, "--stop", "c").out == "cab\n"

    def test_exactly_max_new_tokens_are_generated(self, cli, tiny_config_file):
        for n in (0, 1, 5):
            record = json.loads(
                cli("generate", "one two three", "-c", tiny_config_file, "-n", n, "--json").out
            )
            assert len(record["completion_ids"]) == n
            assert record["finish_reason"] == "length"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-n", "-1"], "--max-new-tokens -1: expected a number from 0 to 2147483647"),
            (["-n", "9" * 400], "expected a whole number below"),
            (["-n", "9" * 12], "expected a number from 0 to 2147483647"),
            (["--set", 'emb_dim=!!int ""'], "is no decimal number"),
            (["--set", 'emb_dim=!!bool "x"'], "is no bool"),
            (["-n", "x"], "got 'x'"),
            (["--stop", ""], "--stop ''"),
            (["--logprobs"], "add --json"),
            (["--device", "tpu"], "--device 'tpu': expected auto, cpu, cuda or cuda:N"),
            (["--dtype", "int3"], "expected one of auto, float32, bfloat16, float16"),
            (["--seed", "-1"], "--seed -1"),
            (["--overflow", "wrap"], "overflow"),
            (["-p", "gpt2-smal"], "did you mean gpt2-small?"),
            (["-p", "gpt2", "-c", "x.yaml"], "give one of them"),
            (["-c", "cfg[1].yaml"], "cfg[1].yaml: no such config file"),
            (["--set", "n_layer=3"], "did you mean n_layers?"),
            (["--temprature", "1"], "no such option: --temprature"),
        ],
    )
    def test_wrong_usage_is_one_line_and_status_2(self, cli, arguments, message):
        result = cli("generate", "Hi", *arguments)
        assert (result.status, result.out) == (2, "")
        assert message in result.err
        assert result.err.count("\n") == 1


class TestContext:
    def test_sliding_gives_the_same_text_with_and_without_a_cache(self, cli, tiny_config_file):
        arguments = ("generate", "one two three four", "-c", tiny_config_file, "-n", 60)
        result = cli(*arguments)
        assert cli(*arguments, "--no-kv-cache").out == result.out
        assert "prompt of 4 tokens, context of 32, room for 29: from new token 30 on" in result.err
        assert "--overflow stop" in result.err

    def test_stop_ends_with_reason_context(self, cli, tiny_config_file):
        arguments = ("generate", "one two three four", "-c", tiny_config_file, "--overflow", "stop", "--json")
        result = cli(*arguments, "-n", 60)
        record = json.loads(result.out)
        assert (record["finish_reason"], len(record["completion_ids"])) == ("context", 29)
        assert "room for 29: decoding stops there (--overflow slide continues)" in result.err
        assert json.loads(cli(*arguments, "-n", 29).out)["finish_reason"] == "length"

    def test_a_prompt_longer_than_the_context_is_cropped_with_a_warning_or_refused(
        self, cli, tiny_config_file
    ):
        prompt = " word" * 50
        result = cli("generate", prompt, "-c", tiny_config_file, "-n", 3, "--json")
        record = json.loads(result.out)
        assert (len(record["prompt_ids"]), record["prompt_tokens_used"]) == (50, 32)
        assert record["prompt"] == prompt
        assert "warning: prompt of 50 tokens, context of 32: only the last 32 are used" in result.err
        short = json.loads(cli("generate", " word" * 32, "-c", tiny_config_file, "-n", 1, "--json").out)
        assert short["completion_ids"][0] == record["completion_ids"][0]
        refused = cli("generate", prompt, "-c", tiny_config_file, "--overflow", "stop")
        assert refused.status == 2
        assert "has 50 tokens, and the context length is 32" in refused.err


class TestOutput:
    def test_half_an_emoji_is_held_back_until_it_is_whole(self, cli, scripted):
        from gptcli.tokenizer import gpt2_encoding

        first, second = gpt2_encoding().encode("😀")
        folder = scripted({A: first, first: second, second: B})
        assert cli("generate", "a", "-w", folder, "-n", 3).out == "a😀b\n"
        assert cli("generate", "a", "-w", folder, "-n", 1).out == "a\ufffd\n"

    def test_ids_without_text_print_as_nothing_and_are_counted(self, cli, scripted):
        result = cli("generate", "a", "-w", scripted({A: 50300, 50300: B}, vocab_size=50304), "-n", 2)
        assert result.out == "ab\n"
        assert "1 generated id without text in the vocabulary" in result.err

    def test_the_record_agrees_with_the_text(self, cli, tiny_config_file):
        arguments = ("generate", "Hello, I am", "-c", tiny_config_file, "-n", 8)
        text, result = cli(*arguments).out, cli(*arguments, "--json", "--logprobs")
        record = json.loads(result.out)
        assert text == record["prompt"] + record["completion"] + "\n"
        assert record["prompt_ids"] == [15496, 11, 314, 716]
        assert all(logprob < 0 for logprob in record["logprobs"])
        assert len(record["logprobs"]) == len(record["completion_ids"]) == 8
        assert all(key.endswith(("_seconds", "_per_second")) for key in record["timings"])
        assert record["device"] | {"device": "cpu", "dtype": "float32"} == record["device"]

    def test_logprobs_are_those_of_the_model(self, cli, tmp_path):
        model = lively_model(tiny_config(vocab_size=50257, emb_dim=32))
        folder = save_huggingface(model, tmp_path)
        record = json.loads(cli("generate", "a", "-w", folder, "-n", 3, "--json", "--logprobs").out)
        ids = record["prompt_ids"] + record["completion_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0].double()
        expected = [logits.log_softmax(-1)[t, ids[t + 1]].item() for t in range(3)]
        assert record["logprobs"] == pytest.approx(expected, abs=1e-4)

    def test_a_file_gets_the_answer_and_stdout_nothing(self, cli, tiny_config_file, tmp_path):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 3)
        target = tmp_path / "out[1].txt"
        result = cli(*arguments, "-o", target)
        assert (result.status, result.out) == (0, "")
        assert target.read_text() == cli(*arguments).out
        assert [path.name for path in tmp_path.iterdir()] == ["out[1].txt"]

    def test_an_output_that_cannot_be_written_is_refused_before_the_work(
        self, cli, tiny_config_file, tmp_path
    ):
        for target, message in ((tmp_path / "no" / "x", "there is no folder"), (tmp_path, "is a folder")):
            result = cli("generate", "Hi", "-c", tiny_config_file, "-o", target)
            assert (result.status, result.out) == (1, "")
            assert message in result.err
            assert "random" not in result.err

    def test_a_file_that_exists_stays_whole_when_writing_fails(
        self, cli, tiny_config_file, tmp_path, monkeypatch
    ):
        target = tmp_path / "out.txt"
        target.write_text("old")
        real = Path.write_bytes

        def full(path: Path, data: bytes) -> None:
            real(path, data[:3])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            result = cli("generate", "Hi", "-c", tiny_config_file, "-n", 3, "-o", target)
        assert result.status == 1
        assert "No space left on device" in result.err
        assert target.read_text() == "old"
        assert list(tmp_path.iterdir()) == [target]
        before = target.stat().st_ino
        assert cli("generate", "Hi", "-c", tiny_config_file, "-n", 3, "-o", target).status == 0
        assert target.stat().st_ino != before  # a new file took its place

    def test_quiet_silences_notes_and_not_what_was_asked_for(self, cli, tiny_config_file):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 3)
        assert cli(*arguments).err == NOTE
        assert cli(*arguments, "--quiet").err == ""
        stats = cli(*arguments, "--quiet", "--stats")
        for unit in ("load", "prefill", "decode", "tokens/s", "GB/s", "cpu float32"):
            assert unit in stats.err
        assert stats.out == cli(*arguments).out

    def test_the_same_command_prints_the_same_text(self, cli, tiny_config_file):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "-n", 8)
        assert cli(*arguments).out == cli(*arguments).out == cli(*arguments, "--seed", 123).out
        assert cli(*arguments).out != cli(*arguments, "--seed", 124).out


class TestImpossible:
    @pytest.mark.parametrize("device", ["cuda", "cuda:7"])
    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_cuda_without_a_gpu_is_an_error(self, cli, tiny_config_file, device):
        result = cli("generate", "Hi", "-c", tiny_config_file, "--device", device)
        assert result.status == 1
        assert f"--device {device}: PyTorch" in result.err
        assert "use --device cpu" in result.err

    def test_cpu_never_asks_cuda(self, cli, tiny_config_file, monkeypatch):
        def ask() -> bool:
            raise AssertionError("CUDA was asked")

        monkeypatch.setattr(torch.cuda, "is_available", ask)
        assert cli("generate", "Hi", "-c", tiny_config_file, "-n", 1, "--device", "cpu").status == 0

    def test_a_model_too_large_is_refused_before_it_is_allocated(self, cli):
        result = cli("generate", "Hi", "-p", "gpt-124m", "--set", "emb_dim=12288", "--set", "n_layers=96")
        assert result.status == 1
        assert "not enough memory: float32 weights" in result.err
        assert "GB), and there are" in result.err

    def test_missing_weights_are_an_error(self, cli):
        result = cli("generate", "Hi", "-w", "/no/such")
        assert (result.status, result.out) == (1, "")
        assert result.err == "error: /no/such: no such weights file or folder\n"

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_logits_that_are_not_finite_are_an_error(self, cli, scripted, value):
        model = scripted_model({A: B, B: C})
        with torch.no_grad():
            model.out_head.weight[7, 1] = value
        folder = scripted({A: B})
        save_tutorial(model, folder)
        result = cli("generate", "a", "-w", folder, "-n", 5)
        assert result.status == 1
        assert "logits are not finite after 1 token:" in result.err

    def test_an_internal_error_is_one_line_and_debug_shows_where(self, cli, tiny_config_file, monkeypatch):
        from gptcli.engine.native.model import NativeModel

        def fail(*_: object, **_options: object) -> None:
            raise RuntimeError("secret\nlines")

        monkeypatch.setattr(NativeModel, "forward", fail)
        result = cli("generate", "Hi", "-c", tiny_config_file, "-q")
        assert result.status == 1
        assert result.err.startswith("error: internal error, RuntimeError: secret lines")
        assert "Traceback" not in result.err
        monkeypatch.setenv("GPTCLI_DEBUG", "1")
        debug = cli("generate", "Hi", "-c", tiny_config_file, "-q").err
        assert "Traceback" in debug
        assert "locals" not in debug


class TestDtypes:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision_runs_and_is_in_the_record(self, cli, tiny_config_file, dtype):
        record = json.loads(cli("generate", "Hi", "-c", tiny_config_file, "--dtype", dtype, "--json").out)
        assert record["device"]["dtype"] == dtype
        assert record["model"]["weight_bytes"] == 2 * record["model"]["parameters"]

    def test_a_tied_head_stays_tied_when_it_is_cast(self, cli, tiny_config_file):
        arguments = ("generate", "Hi", "-c", tiny_config_file, "--set", "tie_embeddings=true", "--json")
        record = json.loads(cli(*arguments, "--dtype", "bfloat16").out)
        assert record["model"]["weight_bytes"] == 2 * record["model"]["parameters"]

    def test_a_half_precision_file_runs_as_float32_on_a_cpu_with_a_note(self, cli, scripted):
        folder = save_tutorial(scripted_model({A: B, B: C}).to(torch.float16), scripted({A: B}))
        result = cli("generate", "a", "-w", folder, "-n", 2, "--json", "--device", "cpu")
        assert json.loads(result.out)["device"]["dtype"] == "float32"
        assert "the file holds float16; on a CPU it runs as float32 (--dtype float16 keeps it)" in result.err
        kept = cli("generate", "a", "-w", folder, "-n", 2, "--json", "--device", "cpu", "--dtype", "float16")
        assert json.loads(kept.out)["device"]["dtype"] == "float16"
        assert kept.err == ""
