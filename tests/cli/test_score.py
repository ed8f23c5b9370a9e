"""`gptcli inspect --score` and `--all-positions`: a text's perplexity from the command line."""

import json
import math
import subprocess
import sys

import pytest

from gptcli.api import load_model, score_text
from tests.models import lively_model, save_tutorial, tiny_config

TEXT = "Once upon a time there was a king, who had a daughter.\n" * 40


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def numbers(out: str) -> dict[str, str]:
    """Return the rows of the table by their names."""
    return dict(line.rsplit(maxsplit=1) for line in out.splitlines()[4:])


class TestWholeText:
    def test_a_file_and_stdin_give_the_score_of_the_api(self, cli, file):
        expected = score_text(load_model(preset="stories"), TEXT)
        result = cli("inspect", "--score", file, "-q")
        assert (result.status, result.err) == (0, "")
        assert "windows of 256 tokens that advance by 128" in result.out
        assert numbers(result.out) == {
            "bytes": f"{len(TEXT):,}",
            "tokens": f"{expected.n_tokens:,}",
            "nats a token": f"{expected.nats_per_token:.4f}",
            "perplexity": f"{expected.perplexity:.4f}",
            "bits a byte": f"{expected.bits_per_byte:.4f}",
        }
        record = json.loads(cli("inspect", "--score", "-", "--json", stdin=TEXT.encode()).out)
        assert record["tokens_scored"] == record["tokens"] - 1 == expected.n_tokens - 1
        assert (record["text"], record["stride"], record["context_length"]) == ("-", 128, 256)
        assert record["nats"] == pytest.approx(expected.nats)
        assert record["perplexity"] == pytest.approx(expected.perplexity)
        assert record["device"]["engine"].startswith("native kernels")

    def test_stride_dtype_quantize_engine_and_threads_apply(self, cli, file):
        def record(*options) -> dict:
            result = cli("inspect", "--score", file, "--json", "-q", *options)
            assert result.status == 0, result.err
            return json.loads(result.out)

        plain = record()
        for options, engine, dtype in (
            (("--engine", "torch"), "PyTorch", "float32"),
            (("--threads", 1), "native", "float32"),
            (("--dtype", "bfloat16"), "native", "bfloat16"),
            (("--dtype", "float16", "--engine", "torch"), "PyTorch", "float16"),
            (("--quantize", "int8"), "native", "int8 with float32"),
        ):
            other = record(*options)
            assert other["device"]["engine"].startswith(engine)
            assert other["device"]["dtype"] == dtype
            rel = 1e-5 if dtype == "float32" else 0.02
            assert other["bits_per_byte"] == pytest.approx(plain["bits_per_byte"], rel=rel)
            assert dtype == "float32" or other["nats"] != plain["nats"]
        assert record("--threads", 1)["device"]["threads"] == 1
        assert record("--stride", 256)["tokens_scored"] == plain["tokens"] - math.ceil(plain["tokens"] / 256)
        assert record("--stride", 32)["nats"] != plain["nats"]

    def test_a_byte_order_mark_is_dropped_and_other_bytes_are_replaced_with_a_note(self, cli, tmp_path):
        plain = json.loads(cli("inspect", "--score", "-", "--json", stdin="Ünë kíng".encode()).out)
        marked = cli("inspect", "--score", "-", "--json", stdin="\ufeffÜnë kíng".encode())
        assert json.loads(marked.out) == plain
        assert "UTF-8" not in marked.err
        path = tmp_path / "latin1.txt"
        path.write_bytes(b"na\xefve king")
        result = cli("inspect", "--score", path)
        assert f"note: --score {path}: not all UTF-8; the other bytes are replaced by U+FFFD" in result.err
        assert numbers(result.out)["bytes"] == str(len("na\ufffdve king".encode()))

    @pytest.mark.parametrize(("text", "message"), [(b"", "a text of 0 tokens"), (b"A", "a text of 1 token;")])
    def test_a_text_with_nothing_to_predict_is_wrong_usage(self, cli, text, message):
        result = cli("inspect", "--score", "-", stdin=text)
        assert (result.status, result.out) == (2, "")
        assert message in result.err

    def test_the_answer_goes_to_a_file(self, cli, file, tmp_path):
        out = tmp_path / "out.txt"
        plain = cli("inspect", "--score", file, "-q").out
        assert cli("inspect", "--score", file, "-q", "-o", out).out == ""
        assert out.read_text() == plain

    def test_weights_are_scored_and_broken_ones_are_one_line(self, cli, file, tmp_path):
        model = lively_model(tiny_config(vocab_size=50257, context_length=32))
        folder = save_tutorial(model, tmp_path / "a")
        result = cli("inspect", folder, "--score", file)
        assert result.status == 0
        assert f"weights {folder}, text {file}, windows of 32 tokens that advance by 16" in result.out
        model.tok_emb.weight.data[257] = math.nan
        broken = cli("inspect", save_tutorial(model, tmp_path / "b"), "--score", file)
        assert (broken.status, broken.out) == (1, "")
        assert "error: the model's logits are not finite" in broken.err

    def test_a_bar_is_shown_on_a_terminal_alone(self, cli, file, monkeypatch):
        assert "\x1b" not in cli("inspect", "--score", file).err
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        for options in ((), ("--per-line",)):
            result = cli("inspect", "--score", file, *options)
            assert f"{len(TEXT)}/{len(TEXT)}" in result.err
            assert "tokens/s" in result.err
            assert "\x1b" not in result.out
            assert "tokens/s" not in cli("inspect", "--score", file, "-q", *options).err

    def test_torch_is_not_imported_for_the_native_kernels(self, file):
        code = f"""
import sys
from gptcli.cli.app import run
assert run(["inspect", "--score", {str(file)!r}, "-q"]) == 0
assert run(["inspect", "--score", {str(file)!r}, "-q", "--per-line"]) == 0
assert "torch" not in sys.modules
"""
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)


class TestPerLine:
    LINES = ("The King said to his daughter", "", "daughter his to said King The", "A", "\tThe end.", "naïve")

    def test_each_line_has_its_score_in_order_so_that_a_script_can_rank_them(self, cli):
        data = "\n".join(self.LINES).encode()
        result = cli("inspect", "--score", "-", "--per-line", stdin=data)
        assert result.status == 0
        rows = [line.split("\t", 4) for line in result.out.removesuffix("\n").split("\n")]
        assert [row[4] for row in rows] == list(self.LINES)
        assert float(rows[0][0]) < float(rows[2][0])
        model = load_model(preset="stories")
        for row in rows:
            score = score_text(model, row[4])
            measures = (score.nats_per_token, score.perplexity, score.bits_per_byte)
            assert [float(cell) for cell in row[:3]] == pytest.approx(
                measures, abs=2e-4, rel=1e-4, nan_ok=True
            )
            assert int(row[3]) == score.n_tokens
        assert [row[0] for row in rows].count("nan") == 2
        assert "note: 2 lines of one token or none: nothing to predict, so the score is nan" in result.err

    def test_json_lines_are_strict(self, cli):
        data = "\r\n".join(self.LINES).encode() + b"\n"
        result = cli("inspect", "--score", "-", "--per-line", "--json", "-q", stdin=data)
        assert result.err == ""
        records = [json.loads(line, parse_constant=pytest.fail) for line in result.out.splitlines()]
        assert [record["text"] for record in records] == list(self.LINES)
        assert [record["line"] for record in records] == list(range(1, 7))
        assert records[1]["perplexity"] == records[3]["perplexity"] == "NaN"
        assert records[0]["nats_per_token"] == records[0]["nats"] / records[0]["tokens_scored"]

    def test_an_empty_file_has_no_lines(self, cli):
        result = cli("inspect", "--score", "-", "--per-line", stdin=b"")
        assert (result.status, result.out) == (0, "")


class TestAllPositions:
    def test_a_prompt_longer_than_the_context_is_scored_by_the_same_windows(self, cli):
        record = json.loads(cli("inspect", "--prompt", TEXT, "--all-positions", "--json").out)
        expected = score_text(load_model(preset="stories"), TEXT)
        assert [row["position"] for row in record["scored"]] == list(range(1, expected.n_tokens))
        assert record["perplexity"] == pytest.approx(expected.perplexity, rel=1e-6)
        strided = cli("inspect", "--prompt", TEXT, "--all-positions", "--stride", 8, "--dtype", "bfloat16")
        assert f"\nperplexity {expected.perplexity:.4f}\n" not in strided.out
        assert strided.status == 0

    def test_other_parts_need_a_prompt_within_the_context(self, cli):
        result = cli("inspect", "--prompt", TEXT, "--all-positions", "--layers")
        assert (result.status, result.out) == (2, "")
        assert "expected 1 to 256 (--all-positions alone takes any length)" in result.err

    def test_it_computes_no_logits_of_all_positions_and_no_insides(self, cli, monkeypatch):
        monkeypatch.setattr("gptcli.cli.views.forward_pass.trace", None)
        assert cli("inspect", "--prompt", "Once upon a time", "--all-positions").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--score", "nowhere.txt"], "--score nowhere.txt: No such file or directory"),
        (["--score", "."], "--score .: is a folder"),
        (["--score", "-", "--stride", "0"], "--stride 0: expected a number from 1 to 256"),
        (["--score", "-", "--stride", "257"], "--stride 257: expected"),
        (["--score", "-", "--prompt", "x"], "separate views"),
        (["--score", "-", "--top-k", "3"], "separate views"),
        (["--score", "-", "--gradients"], "separate views"),
        (["--per-line"], "--per-line is for --score"),
        (["--stride", "4"], "--stride is for --score and --all-positions"),
        (["--prompt", "x", "--dtype", "bfloat16"], "--dtype: for --score, and for --all-positions alone"),
        (["--prompt", "x", "--layers", "--engine", "native"], "--engine: for --score"),
        (["--quantize", "int8", "--threads", "2"], "--quantize, --threads: for --score"),
        (["--score", "-", "--threads", "0"], "--threads 0: expected"),
        (["--score", "-", "--dtype", "float8"], "--dtype 'float8': expected"),
    ],
)
def test_wrong_usage(cli, arguments, message):
    result = cli("inspect", *arguments, stdin=b"")
    assert (result.status, result.out) == (2, "")
    assert message in result.err
