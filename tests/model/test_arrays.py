"""Conversion between dtypes in NumPy, against PyTorch's; and the pieces that it is done in."""

import numpy as np
import pytest
import torch

from gptcli.model import arrays
from gptcli.model.arrays import PieceRunner, convert, pieces

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def as_array(tensor):
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", 40)


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (257, 5), (103, 20)], ids=str)
@pytest.mark.parametrize("stored", [*DTYPES, "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_becomes_every_other_as_in_pytorch(stored, dtype, shape):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(1e5)
    numbers = numbers.to(DTYPES.get(stored, torch.float64))
    if numbers.ndim and len(numbers):
        numbers[0], numbers[-1] = float("inf"), float("nan")
        numbers[1] = -float("nan")
    expected = numbers.to(DTYPES[dtype])
    for array in (as_array(numbers), as_array(numbers).copy("F")):
        converted = convert(array, dtype)
        assert converted.dtype == as_array(expected).dtype
        widened = torch.from_numpy(converted.copy()).view(DTYPES[dtype]).double()
        assert torch.equal(widened.nan_to_num(nan=-1.0), expected.double().nan_to_num(nan=-1.0))


def test_every_bfloat16_and_its_neighbors_round_as_in_pytorch():
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([upper | lower for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    numbers = bits.astype(np.uint32).view(np.float32)
    expected = torch.from_numpy(numbers).bfloat16()
    converted = convert(numbers, "bfloat16")
    is_nan = np.isnan(numbers)
    assert np.array_equal(converted[~is_nan], as_array(expected)[~is_nan])
    assert np.isnan((converted[is_nan].astype(np.uint32) << 16).view(np.float32)).all()


def test_a_transposed_view_keeps_its_order():
    numbers = np.arange(600.0, dtype=np.float32).reshape(300, 2)
    assert convert(numbers.T, "float16").T.flags.c_contiguous
    assert convert(numbers, "float32") is numbers


@pytest.mark.parametrize("shape", [(0, 4), (1, 100), (3, 100), (50, 7), (41,), (80, 1)], ids=str)
def test_pieces_cover_every_row_once_and_are_small(shape):
    array = np.zeros(shape)
    covered = [row for piece in pieces(array) for row in range(shape[0])[piece]]
    assert covered == list(range(shape[0]))
    assert all(array[piece].size <= 40 or len(array[piece]) == 1 for piece in pieces(array))
    assert len(pieces(array)) <= 2 * array.size / 40 + 1


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_piece_is_done_in_the_last_pass_alone_and_a_fault_is_raised(n_threads):
    array, done = np.arange(200.0), []
    with PieceRunner(n_threads, done=lambda piece: done.append(float(piece[0]))) as each:
        each(array, array.__getitem__, is_last=False)
        assert not done
        each(array, array.__getitem__)
        assert sorted(done) == [0, 40, 80, 120, 160]
        with pytest.raises(MemoryError):
            each(array, fail_at_the_third)
    assert len(done) < 10


def fail_at_the_third(piece: slice) -> None:
    if piece.start == 80:
        raise MemoryError
