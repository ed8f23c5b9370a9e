"""Safetensors headers: a valid one is read, a broken one is refused as corrupt, with the sizes."""

import json
import struct
import time

import pytest
import torch
from safetensors.torch import save_file

from gptcli.errors import WeightsError
from gptcli.weights.header import MAX_HEADER_BYTES, read_file_header


def entry(begin: int, end: int, dtype: object = "F32", shape: object = None) -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def build(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.fixture
def written(tmp_path):
    def write(content: bytes):
        path = tmp_path / "x.safetensors"
        path.write_bytes(content)
        return path

    return write


def test_names_dtypes_shapes_and_offsets_are_those_that_safetensors_wrote(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {
        "a": torch.ones(2, 3),
        "b": torch.ones(5, dtype=torch.bfloat16),
        "c": torch.tensor(1.0).double(),
    }
    save_file(tensors | {"empty": torch.ones(0, 4)}, path, metadata={"format": "pt"})
    found = read_file_header(path)
    assert found.metadata == {"format": "pt"}
    assert {n: (t.dtype, t.shape, t.n_bytes) for n, t in found.tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("BF16", (5,), 10),
        "c": ("F64", (), 8),
        "empty": ("F32", (0, 4), 0),
    }
    assert found.n_bytes == 42


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the header alone needs 8 bytes, the file has 0"),
        (b"1234567", "the header alone needs"),
        (build({}, length=2**40), f"needs {2**40 + 8:,} bytes"),
        (build(b"hello"), "its header is not the JSON"),
        (build(b"\xff\xff"), "its header is not the JSON"),
        (build(b"[" * 100_000), "its header is not the JSON"),
        (build([]), "its header is not a JSON object"),
        (build(b'{"a": {}, "a": {}}'), "key 'a' appears twice"),
        (build({"a": 5}), "the entry of tensor 'a'"),
        (build({"a": {"dtype": "F32", "shape": [1]}}), "the entry of tensor 'a'"),
        (build({"a": entry(0, 4, shape="x")}, b"1234"), "the entry of tensor 'a'"),
        (build({"a": entry(0, 4, shape=[-1])}, b"1234"), "the entry of tensor 'a'"),
        (build({"a": entry(0, 4, shape=[True])}, b"1234"), "the entry of tensor 'a'"),
        (build({"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}, b"1234"), "dtype"),
        (build({"a": entry(0, 4, dtype="F99")}, b"1234"), "unknown dtype 'F99'"),
        (build({"a": entry(0, 4, shape=[2])}, b"1234"), "needs 8 bytes, its offsets give 4"),
        (build({"a": entry(0, 4, shape=[2**62, 2**62])}, b"1234"), "its offsets give 4"),
        (build({"a": entry(0, 8), "b": entry(4, 12)}, b"1" * 12), "tensor 'b' begins at byte 4, where 8"),
        (build({"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12), "tensor 'b' begins at byte 8, where 4"),
        (build({"a": entry(8, 4, shape=[1])}, b"1" * 12), "offsets give -4"),
        (build({"a": entry(0, 8)}, b"1234"), "its tensors need 8 bytes of data, the file has 4"),
        (build({"a": entry(0, 8)}, b"1" * 9), "its tensors need 8 bytes of data, the file has 9"),
        (build({"__metadata__": {"a": 1}}), "__metadata__"),
        (build({"a": entry(0, 4, shape=[2**63])}, b"1234"), "the entry of tensor 'a'"),
        (build({"a": entry(0, 4, shape=[1] * 65)}, b"1234"), "the entry of tensor 'a'"),
        (build(b'{"a": ' + b"9" * 5000 + b"}"), "a whole number of 5,000 digits"),
        (build({"a" * 1001: entry(0, 4)}, b"1234"), "the name of a tensor has 1,001 characters"),
        (build({"__metadata__": [1]}), "__metadata__"),
    ],
)
def test_a_broken_header_is_refused_with_the_reason(written, content, message):
    with pytest.raises(WeightsError) as error:
        read_file_header(written(content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 548105171\n"


def test_a_git_lfs_pointer_is_named_with_what_to_run(written):
    path = written(LFS_POINTER)
    with pytest.raises(WeightsError) as error:
        read_file_header(path)
    assert str(error.value).startswith(f"{path}: a Git LFS pointer")
    assert "git lfs pull" in str(error.value)
    assert "corrupt" not in str(error.value)
    assert "\n" not in str(error.value)
    for other in (LFS_POINTER[:8], LFS_POINTER[:30], b"version https://example.org/spec/v1\n"):
        with pytest.raises(WeightsError, match="corrupt or incomplete"):
            read_file_header(written(other))


def test_an_absurd_header_is_refused_by_its_length_alone(tmp_path):
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(2 * MAX_HEADER_BYTES)  # a sparse file: no bytes are there
    with pytest.raises(WeightsError, match="corrupt or incomplete"):
        read_file_header(path)


def test_a_file_cut_anywhere_is_called_incomplete(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match="corrupt or incomplete"):
            read_file_header(path)


def test_a_hundred_thousand_tensors_are_read_quickly(written):
    header = {f"tensor.{i}": entry(4 * i, 4 * i + 4) for i in range(100_000)}
    path = written(build(header, b"1234" * 100_000))
    start = time.monotonic()
    assert len(read_file_header(path).tensors) == 100_000
    assert time.monotonic() - start < 30  # against hanging, nothing else


def test_thousands_of_numbers_of_thousands_of_digits_take_no_time(written):
    """Attack B4: reading 1,000 numbers of 4,200 digits took 27 s, and multiplying them longer."""
    digits = b"1" + b"0" * 4200
    header = (
        b'{"a": {"dtype": "F32", "data_offsets": [0, 4], "shape": [' + b",".join([digits] * 1000) + b"]}}"
    )
    start = time.monotonic()
    with pytest.raises(WeightsError, match=r"a whole number of 4,201 digits: 1000000000…"):
        read_file_header(written(build(header, b"1234")))
    assert time.monotonic() - start < 3
