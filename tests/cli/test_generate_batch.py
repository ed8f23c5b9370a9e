"""`gptcli generate --input`: records in order, with bad lines, and after a kill at any moment."""

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gptcli.cli.record_file import RecordFile
from gptcli.errors import count
from tests.models import lively_model, save_huggingface, tiny_config

PROMPTS = ["Hello, I am", "Hi", "", "x " * 50, "The [bold]king[/bold]", "€ 😀", "a\tb"]


@pytest.fixture
def tiny(tiny_config_file):
    return ("-c", tiny_config_file, "-q")


def without_timings(path: Path) -> list[dict]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "timings"} for record in records]


def write_jsonl(path: Path, prompts, **more) -> Path:
    path.write_text(
        "".join(json.dumps({"id": f"r{i}", "prompt": p} | more) + "\n" for i, p in enumerate(prompts))
    )
    return path


def single(cli, prompt: str, *arguments) -> dict:
    result = cli("generate", "--json", *arguments, "--", prompt)
    return {key: value for key, value in json.loads(result.out).items() if key != "timings"}


class TestRecords:
    def test_records_are_those_of_single_prompts_in_the_order_of_the_lines(self, cli, tiny, tmp_path):
        source, target = write_jsonl(tmp_path / "p.jsonl", PROMPTS), tmp_path / "r.jsonl"
        result = cli("generate", "-i", source, "-o", target, "-n", 8, *tiny)
        assert (result.status, result.out, result.err) == (0, "", "")
        expected = [{"id": f"r{i}"} | single(cli, prompt, "-n", 8, *tiny) for i, prompt in enumerate(PROMPTS)]
        assert without_timings(target) == expected

    def test_records_hold_logprobs_rounded_to_four_decimals(self, cli, tiny, tmp_path):
        source = write_jsonl(tmp_path / "p.jsonl", PROMPTS)
        result = cli("generate", "-i", source, "--json", "-n", 3, "--logprobs", *tiny)
        for line, prompt in zip(result.out.splitlines(), PROMPTS, strict=True):
            logprobs = json.loads(line)["logprobs"]
            assert logprobs == [round(value, 4) for value in logprobs]
            assert logprobs == pytest.approx(
                single(cli, prompt, "-n", 3, "--logprobs", *tiny)["logprobs"], abs=2e-4
            )

    def test_a_line_may_have_its_own_max_new_tokens_and_no_id(self, cli, tiny, tmp_path):
        source = tmp_path / "p.jsonl"
        source.write_text(
            '{"prompt": "a", "max_new_tokens": 0}\n\n{"prompt": "b", "max_new_tokens": 3, "x": 1}\n'
        )
        result = cli("generate", "-i", source, "--json", "-n", 9, *tiny)
        records = [json.loads(line) for line in result.out.splitlines()]
        assert [(r["id"], r["prompt"], len(r["completion_ids"])) for r in records] == [
            (1, "a", 0),
            (3, "b", 3),
        ]

    def test_a_text_file_has_one_prompt_per_line(self, cli, tiny, tmp_path):
        source = tmp_path / "p.txt"
        source.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo words\xff\n\xe2\x80\xa8 three")
        result = cli("generate", "-i", source, "--json", "-n", 1, *tiny)
        records = [json.loads(line) for line in result.out.split("\n")[:-1]]
        assert [(r["id"], r["prompt"]) for r in records] == [
            (1, "one"), (2, ""), (3, "two words�"), (4, "\u2028 three"),
        ]  # fmt: skip

    def test_a_csv_file_has_its_prompts_in_a_column(self, cli, tiny, tmp_path):
        source = tmp_path / "p.csv"
        source.write_text('id,text\nA,"one, ""two""\nthree"\n,four\nC\n')
        result = cli("generate", "-i", source, "--column", "text", "--json", "-n", 1, *tiny)
        records = [json.loads(line) for line in result.out.splitlines()]
        assert [(r["id"], r["prompt"]) for r in records] == [
            ("A", 'one, "two"\nthree'),
            (2, "four"),
            ("C", ""),
        ]
        assert "ends before column 'text'" in records[2]["error"]
        assert result.status == 1
        wrong = cli("generate", "-i", source, "--column", "txt", *tiny)
        assert wrong.status == 2
        assert "--column 'txt': the file's columns are id, text" in wrong.err

    def test_stdout_gets_text_with_a_separator(self, cli, tiny, tmp_path):
        source = tmp_path / "p.txt"
        source.write_text("Hello\nHi\n")
        alone = [cli("generate", prompt, "-n", 4, *tiny).out for prompt in ("Hello", "Hi")]
        assert cli("generate", "-i", source, "-n", 4, *tiny).out == f"{alone[0]}---\n{alone[1]}"

    def test_stop_strings_end_of_text_and_overflow_work_in_a_batch(self, cli, tiny, tmp_path):
        source, options = write_jsonl(tmp_path / "p.jsonl", PROMPTS), ("-n", 60, "--stop", "e", *tiny)
        result = cli("generate", "-i", source, "--json", *options)
        for line, prompt in zip(result.out.splitlines(), PROMPTS, strict=True):
            record = json.loads(line)
            assert single(cli, prompt, *options).items() <= record.items()
        stopped = cli("generate", "-i", source, "--json", "--overflow", "stop", "-n", 60, *tiny)
        records = [json.loads(line) for line in stopped.out.splitlines()]
        assert "the context length is 32" in records[3]["error"]  # the long prompt
        assert {record["finish_reason"] for record in records if "error" not in record} == {"context"}

    def test_samples_depend_on_seed_and_record_and_on_nothing_else(self, cli, tiny, tmp_path):
        source, options = write_jsonl(tmp_path / "p.jsonl", ["Hi"] * 5), ("-n", 6, "--num-samples", 2, *tiny)
        seen = []
        for size in (1, 3, 32):
            result = cli("generate", "-i", source, "--json", "--batch-size", size, *options)
            seen.append([json.loads(line)["samples"] for line in result.out.splitlines()])
        assert seen[0] == seen[1] == seen[2]
        texts = [sample["completion"] for samples in seen[0] for sample in samples]
        assert len(set(texts)) == 10
        assert single(cli, "Hi", *options)["samples"] == seen[0][0]


class TestBadLines:
    LINES = (
        '{"prompt": "a"}', "{", "[1]", '{"prompt": 7}', '{"id": true, "prompt": "b"}', "null", "\x00",
        '{"id": 1}', '{"prompt": "b", "max_new_tokens": -1}', '{"prompt": "\\ud800"}', "[" * 100_000,
        '{"prompt": "b", "max_new_tokens": 1e9}', '{"prompt": "c"}',
    )  # fmt: skip

    def test_bad_lines_become_error_records_and_the_run_continues(self, cli, tiny, tmp_path):
        source, target = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
        source.write_text("\n".join(self.LINES))
        result = cli("generate", "-i", source, "-o", target, "-n", 2, *tiny)
        records = without_timings(target)
        good = [0, 9, 12]
        assert [i for i, record in enumerate(records) if "error" not in record] == good
        assert len(records) == len(self.LINES)
        assert all(f"line {i + 1}" in records[i]["error"] for i in range(13) if i not in good)
        assert records[9]["prompt"] == "�"
        assert result.status == 1
        assert result.err == "error: errors in 10 of 13 records\n"

    def test_fail_fast_stops_at_a_bad_line_and_resume_continues_once_it_is_fixed(self, cli, tiny, tmp_path):
        source, target = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
        source.write_text('{"prompt": "a"}\n{"prompt": 1}\n{"prompt": "c"}\n')
        result = cli("generate", "-i", source, "-o", target, "-n", 2, "--fail-fast", *tiny)
        assert result.status == 1
        assert result.err == "error: --fail-fast: line 2: prompt: expected a string\n"
        assert [record["id"] for record in without_timings(target)] == [1]
        source.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
        assert cli("generate", "-i", source, "-o", target, "-n", 2, "--resume", *tiny).status == 0
        assert [record["prompt"] for record in without_timings(target)] == ["a", "b", "c"]


class TestTheFile:
    @pytest.fixture
    def done(self, cli, tiny, tmp_path) -> tuple[Path, Path]:
        """Return an input and its finished records."""
        source, target = (
            write_jsonl(tmp_path / "p.jsonl", [f"word {i}" for i in range(9)]),
            tmp_path / "r.jsonl",
        )
        assert cli("generate", "-i", source, "-o", target, "-n", 4, *tiny).status == 0
        return source, target

    def test_an_output_file_is_overwritten_only_with_force(self, cli, tiny, done):
        source, target = done
        before = target.read_bytes()
        result = cli("generate", "-i", source, "-o", target, "-n", 1, *tiny)
        assert result.status == 1
        assert (
            result.err == f"error: --output {target}: exists; --resume continues it, --force overwrites it\n"
        )
        assert target.read_bytes() == before
        assert cli("generate", "-i", source, "-o", target, "-n", 1, "--force", *tiny).status == 0
        assert {len(record["completion_ids"]) for record in without_timings(target)} == {1}

    @pytest.mark.parametrize("cut", [0, 1, 50, 700])
    def test_a_file_cut_anywhere_is_completed_and_its_whole_records_stay(self, cli, tiny, done, cut):
        source, target = done
        whole, records = target.read_bytes(), without_timings(target)
        target.write_bytes(whole[: len(whole) - cut])
        kept = whole[: len(whole) - cut].rpartition(b"\n")[0]
        assert cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", *tiny).status == 0
        assert without_timings(target) == records
        assert target.read_bytes().startswith(kept)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda lines: [lines[1], lines[0]], "record 1 of"),
            (lambda lines: [lines[0], "{}", *lines[2:]], "line 2 of"),
            (lambda lines: [lines[0], "rubbish"], "line 2 of"),
            (lambda lines: [*lines, lines[0]], "record 10 of"),
        ],
    )
    def test_a_file_of_another_input_is_not_resumed(self, cli, tiny, done, change, message):
        source, target = done
        target.write_text("\n".join(change(target.read_text().splitlines())) + "\n")
        before = target.read_bytes()
        result = cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", *tiny)
        assert result.status == 2
        assert message in result.err
        assert "--force overwrites the file" in result.err
        assert target.read_bytes() == before

    @pytest.mark.parametrize(
        ("options", "change"),
        [
            (("-n", 3), "max new tokens was 4 and is 3"),
            (("--temperature", 0.5), "temperature was null and is 0.5"),
            (("--stop", "x"), 'stops was [] and is ["x"]'),
            (("--logprobs",), "logprobs was false and is true"),
            (("--quantize", "int8"), "quantize was false and is true"),
            (("--dtype", "bfloat16"), 'dtype was "auto" and is "bfloat16"'),
        ],
        ids=str,
    )
    def test_records_of_other_options_are_not_resumed_unless_forced(self, cli, tiny, done, options, change):
        source, target = done
        lines = target.read_bytes().splitlines(keepends=True)
        target.write_bytes(b"".join(lines[:3]))
        arguments = ("generate", "-i", source, "-o", target, "-n", 4, *tiny, *options, "--resume")
        result = cli(*arguments)
        assert result.status == 2
        assert f"was written by another run: {change}; " in result.err
        assert "--resume --force continues it all the same" in result.err
        assert target.read_bytes() == b"".join(lines[:3])
        assert cli(*arguments, "--force").status == 0
        assert target.read_bytes().startswith(b"".join(lines[:3]))
        assert len(target.read_bytes().splitlines()) == len(lines)

    def test_records_of_other_weights_are_not_resumed(self, cli, tiny, done, tmp_path):
        source, target = done
        other = save_huggingface(lively_model(tiny_config(vocab_size=50257), 5), tmp_path / "other")
        result = cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", "-w", other)
        assert (result.status, "it had other weights" in result.err) == (2, True)
        assert cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", *tiny).status == 0

    @pytest.mark.parametrize("content", [b'{"precious": 1}', b"precious\n", b"\x00\x01binary"], ids=str)
    @pytest.mark.parametrize("options", [(), ("--force",)])
    def test_a_file_that_never_held_records_is_never_touched(self, cli, tiny, done, content, options):
        source, target = done
        target.write_bytes(content)
        result = cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", *tiny, *options)
        assert result.status == 2
        assert target.read_bytes() == content
        (target.parent / f".{target.name}.run").unlink()
        assert cli("generate", "-i", source, "-o", target, "-n", 4, "--resume", *tiny).status == 2
        assert target.read_bytes() == content

    @pytest.mark.parametrize(
        "options",
        [
            ("--temperature", "nan"),
            ("--device", "cuda:7"),
            ("--batch-size", "0"),
            ("--fail-fast", "--overflow", "stop"),
            ("--column", "x"),
            ("-w", "nowhere"),
            ("--quantize", "int8", "--speculate", "self"),
        ],
        ids=str,
    )
    def test_force_leaves_the_old_output_until_there_is_a_new_record(self, cli, tiny, done, options):
        source, target = done
        (source.parent / "long.txt").write_text("a " * 500)
        before = target.read_bytes()
        arguments = ("generate", "-i", source.parent / "long.txt", "-n", 1, *tiny, *options)
        assert cli(*arguments, "-o", target, "--force").status in (1, 2)
        assert target.read_bytes() == before
        new = target.with_name("new.jsonl")
        assert cli(*arguments, "-o", new).status in (1, 2)
        assert not new.exists()

    def test_an_error_that_was_written_still_counts_when_resumed(self, cli, tiny, tmp_path):
        source, target = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
        source.write_text("{\n" + '{"prompt": "b"}\n')
        assert cli("generate", "-i", source, "-o", target, "-n", 1, *tiny).status == 1
        again = cli("generate", "-i", source, "-o", target, "-n", 1, "--resume", *tiny)
        assert (again.status, again.err) == (1, "error: errors in 1 of 2 records\n")

    def test_two_runs_never_write_one_file(self, tiny, tmp_path, process):
        target = tmp_path / "r.jsonl"
        command = [sys.executable, "-m", "gptcli", "generate", "-i", "-", "-o", str(target), *map(str, tiny)]
        first = subprocess.Popen(command, stdin=subprocess.PIPE)
        while not target.exists():
            time.sleep(0.05)
        second = process("generate", "-i", "-", "-o", target, "--resume", *tiny, input=b"b\n")
        assert second.returncode == 1
        assert second.stderr == f"error: --output {target}: another run is writing it\n".encode()
        first.communicate(b"a\n", timeout=60)
        assert [record["prompt"] for record in without_timings(target)] == ["a"]

    def test_a_full_disk_is_an_error_of_one_line(self, process, tiny, done):
        result = process("generate", "-i", done[0], "-o", "/dev/full", *tiny)
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr == b"error: --output /dev/full: No space left on device\n"


class TestInterrupted:
    def test_a_run_killed_at_any_moment_resumes_to_the_same_file(self, tmp_path, process):
        draw, source = random.Random(3), tmp_path / "p.jsonl"
        write_jsonl(
            source, [" ".join(["once", "upon", "a", "time"] * draw.randrange(1, 9)) for _ in range(400)]
        )
        options = ("-i", source, "-n", 8, "-q", "--batch-size", 4)
        assert process("generate", *options, "-o", tmp_path / "whole.jsonl").returncode == 0
        target, standing = tmp_path / "killed.jsonl", []
        for _ in range(3):
            command = [
                sys.executable,
                "-m",
                "gptcli",
                "generate",
                *map(str, options),
                "-o",
                target,
                "--resume",
            ]
            child = subprocess.Popen(command)
            wanted = (standing[-1] if standing else 0) + draw.randrange(1, 110)
            deadline = time.monotonic() + 60
            while child.poll() is None and time.monotonic() < deadline:
                if target.exists() and target.read_bytes().count(b"\n") >= wanted:
                    break
                time.sleep(0.005)
            child.kill()
            child.wait()
            standing.append(target.read_bytes().count(b"\n"))
        assert standing[0] < standing[-1] < 400  # it was killed before it was done
        assert process("generate", *options, "-o", target, "--resume").returncode == 0
        assert without_timings(target) == without_timings(tmp_path / "whole.jsonl")

    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_after_a_signal_whole_records_stay_and_a_note_says_how_to_resume(self, tmp_path, number, status):
        source, target = write_jsonl(tmp_path / "p.jsonl", ["once upon a time"] * 3000), tmp_path / "r.jsonl"
        command = [sys.executable, "-m", "gptcli", "generate", "-i", source, "-o", target, "-n", "30"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not (target.exists() and target.stat().st_size):
            time.sleep(0.02)
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
        assert child.returncode == status
        n = len(without_timings(target))
        assert 0 < n < 3000
        assert (
            err.decode().splitlines()[-1]
            == f"note: {target} holds {count(n, 'record')}; --resume continues after them"
        )

    def test_a_record_counts_as_soon_as_it_is_in_the_file(self, cli, tiny, tmp_path, monkeypatch):
        source, target = write_jsonl(tmp_path / "p.jsonl", ["a"] * 5), tmp_path / "r.jsonl"
        write = RecordFile.write

        def interrupted(file, line):
            write(file, line)
            if file.count() == 3:
                raise KeyboardInterrupt  # before the caller has counted it

        monkeypatch.setattr(RecordFile, "write", interrupted)
        result = cli("generate", "-i", source, "-o", target, "-n", 1, *tiny[:-1])
        assert result.status == 130
        assert f"note: {target} holds 3 records; --resume continues after them" in result.err

    def test_half_a_record_does_not_count(self, tmp_path):
        target = tmp_path / "r.jsonl"
        target.write_text('{"id": 1}\n{"id": 2}\n{"id')
        file = RecordFile(target, {}, resume=True, force=True)
        assert file.count() == 2
        file.close()
        device = RecordFile(Path("/dev/null"), {}, resume=False, force=False)
        assert device.count() is None
        device.close()

    def test_a_pipe_that_stays_open_gets_its_answers_at_once(self, tiny):
        command = [
            sys.executable,
            "-m",
            "gptcli",
            "generate",
            "-i",
            "-",
            "--json",
            "-n",
            "2",
            *map(str, tiny),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            for prompt in ("one", "two", "three"):
                child.stdin.write(prompt.encode() + b"\n")
                child.stdin.flush()
                assert json.loads(child.stdout.readline())["prompt"] == prompt
            child.stdin.close()
            assert child.stdout.read() == b""
            assert child.wait(timeout=60) == 0

    def test_a_reader_that_goes_away_ends_the_run_silently(self, tiny, tmp_path):
        source = write_jsonl(tmp_path / "p.jsonl", ["Hi"] * 2000)
        command = f"{sys.executable} -m gptcli generate -i {source} --json -c {tiny[1]} -q | head -1"
        result = subprocess.run(
            ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
        )
        assert result.stdout.splitlines()[-1] == b"141"
        assert result.stderr == b""


def _read(terminal: int) -> bytes:
    """Return what was written to a terminal; nothing once its program has ended."""
    try:
        return os.read(terminal, 100_000)
    except OSError:
        return b""


def test_the_progress_bar_is_on_stderr_and_only_on_a_terminal(tiny, tmp_path):
    source = write_jsonl(tmp_path / "p.jsonl", ["Hi"] * 40)
    command = [sys.executable, "-m", "gptcli", "generate", "-i", source, "--json", "-c", str(tiny[1])]
    piped = subprocess.run(command, capture_output=True, timeout=60)
    assert b"\x1b" not in piped.stderr
    assert b"\r" not in piped.stderr
    ours, theirs = pty.openpty()
    screen = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as child:
        os.close(theirs)
        while chunk := _read(ours):
            screen += chunk
        out = child.stdout.read()
    assert len(out.splitlines()) == 40
    assert b"\x1b" not in out
    assert b"/40" in screen
    assert b"tokens/s" in screen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Hi", "-i", "p.txt"), "give a prompt or --input, not both"),
        (("-i", "missing.txt"), "missing.txt: no such file"),
        (("-i", "p.parquet"), "expected .txt, .jsonl or .csv"),
        (("-i", "p.csv"), "--column names the prompts' column"),
        (("-i", "p.txt", "--column", "x"), "--column names the prompts' column"),
        (("-i", "p.txt", "--batch-size", "0"), "--batch-size '0': expected auto"),
        (("-i", "p.txt", "--batch-size", "many"), "--batch-size 'many': expected auto"),
        (("-i", "p.txt", "--resume"), "need an --output file"),
        (("-i", "p.txt", "-o", "r.txt"), "give a name ending in .jsonl"),
        (("-i", "p.jsonl", "-o", "p.jsonl", "--force"), "is the input file as well"),
        (("Hi", "--resume"), "need --input"),
        (("Hi", "--fail-fast"), "need --input"),
        (("-i", "p.txt", "--logprobs", "--temperature", "nan"), "--temperature nan"),
    ],
    ids=str,
)
def test_wrong_usage_is_refused_before_any_file_is_touched(
    cli, tiny, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    for name in ("p.txt", "p.csv", "p.jsonl", "p.parquet"):
        Path(name).write_text("Hi\n")
    result = cli("generate", *arguments, *tiny)
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert Path("p.jsonl").read_text() == "Hi\n"
    assert not Path("r.jsonl").exists()
