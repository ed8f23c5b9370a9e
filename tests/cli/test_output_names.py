"""Names of outputs and sizes of numbers that no run should find out about after its work."""

import os

import pytest

HUGE = "9" * 400


def test_a_loop_of_links_is_refused_before_the_work(cli, tmp_path, tiny_config_file):
    a, b = tmp_path / "a", tmp_path / "b"
    a.symlink_to(b)
    b.symlink_to(a)
    result = cli("generate", "Hi", "-c", tiny_config_file, "-n", 1, "-q", "-o", a)
    assert (result.status, result.out) == (1, "")
    assert result.err == f"error: --output {a}: Too many levels of symbolic links\n"


@pytest.mark.parametrize(("length", "status"), [(255, 0), (256, 1)])
def test_a_name_may_be_as_long_as_the_system_allows(cli, tmp_path, tiny_config_file, length, status):
    path = tmp_path / ("a" * (length - 4) + ".txt")
    result = cli("generate", "Hi", "-c", tiny_config_file, "-n", 0, "-q", "-o", path)
    assert result.status == status
    if status:
        assert result.err == f"error: --output {path}: File name too long\n"
    else:
        assert path.read_text() == "Hi\n"
        assert list(tmp_path.iterdir()) == [path]


def test_the_answer_goes_to_a_pipe_that_a_link_names(cli, tiny_config_file):
    reader, writer = os.pipe()
    result = cli("generate", "Hi", "-c", tiny_config_file, "-n", 0, "-q", "-o", f"/proc/self/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader) as file:
        assert (result.status, result.err, file.read()) == (0, "", "Hi\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "Hi", "-n", HUGE),
        ("generate", "Hi", "--top-k", HUGE),
        ("generate", "Hi", "--num-samples", HUGE),
        ("generate", "-i", "p.txt", "--batch-size", HUGE),
        ("generate", "-i", "p.txt", "--batch-size", "9" * 5000),
        ("inspect", "--shapes", "--batch", HUGE),
    ],
)
def test_a_number_that_no_count_has_is_wrong_usage(cli, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("Hi\n")
    result = cli(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert "internal" not in result.err
    assert "below 2⁶³" in result.err


def test_a_stop_of_backslash_and_n_gets_a_note(cli, tiny_config_file):
    result = cli("generate", "Hi", "-c", tiny_config_file, "-n", 0, "--stop", r"\n")
    assert result.status == 0
    assert r"note: --stop '\\n' is looked for as it is" in result.err
    assert "backslash" not in cli("generate", "Hi", "-c", tiny_config_file, "-n", 0, "--stop", "\n").err
