"""YAML that means something else than it seems to, or nothing: one line with the value and status 2."""

import pytest

from gptcli.config.files import parse_yaml

TAGS = ['!!int ""', '!!int "_"', '!!int "x"', '!!float ""', '!!float "x"', '!!bool "x"', '!!timestamp "x"']


@pytest.mark.parametrize("value", [*TAGS, "012", "1:30", "1:30.5", "0x10", "0b1"])
def test_a_value_that_is_no_plain_number_is_refused_by_name(cli, tmp_path, value):
    file = tmp_path / "c.yaml"
    file.write_text(f"emb_dim: {value}\n")
    for arguments in (("--config", file), ("--set", f"emb_dim={value}")):
        result = cli("params", *arguments)
        assert result.status == 2, result
        assert "internal" not in result.err
        assert value.split()[-1].strip('"') in result.err
        assert result.err.count("\n") <= 2


@pytest.mark.parametrize("text", ["? !!set {a}\n: 1", "? [a]\n: 1", "? !!omap [a: 1]\n: 1"])
def test_a_key_that_is_no_text_is_refused(text):
    with pytest.raises(ValueError, match="a key is not plain text"):
        parse_yaml(text)


def test_plain_numbers_are_what_they_say():
    text = "[0, -3, +5, 1_000, 768, 1e-5, 0.5, .inf]"
    assert parse_yaml(text) == [0, -3, 5, 1000, 768, 1e-5, 0.5, float("inf")]
