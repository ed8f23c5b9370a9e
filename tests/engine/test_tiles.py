"""Products by tiles of a matrix, for every number of tokens, against float64: sizes that no tile divides."""

import itertools

import numpy as np
import pytest
import torch
from numba import config as numba_config
from numba import njit
from numba.np.numpy_support import from_dtype

from gptcli.engine import compiled, products
from gptcli.engine.cpu import MAX_TOKENS
from gptcli.engine.tile import COLUMNS, MOST_ROWS, TOKENS, n_rows_of, provide

UNIT = 2.0**-24
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]
# Inputs and outputs: smaller than a tile, a tile, some tiles, and a little more.
SIZES = [(1, 1), (7, 5), (16, COLUMNS), (64, 2 * COLUMNS), (130, 3 * COLUMNS + 5), (200, 7 * COLUMNS - 1)]


@njit
def run_linear(x, weights, biases, scales, out, room, n, how):
    products.linear(x, weights, biases, scales, out, room, n, how)


def stored(matrix: torch.Tensor) -> np.ndarray:
    """As the engine hands it to the kernels."""
    kinds = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
    return matrix.view(kinds.get(matrix.dtype, matrix.dtype)).numpy()


def draw(n_rows: int, n_columns: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (n_rows, n_columns), generator=generator, dtype=dtype)
    return torch.randn(n_rows, n_columns, generator=generator).to(dtype)


@pytest.mark.parametrize("by_columns", [True, False], ids=["columns", "rows"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_of_tokens_and_threads_gives_the_product(dtype, by_columns):
    provide(from_dtype(stored(torch.empty(1, dtype=dtype)).dtype))
    generator = torch.Generator().manual_seed(0)
    for (n_inputs, n_outputs), n in itertools.product(SIZES, (1, 2, 3)):
        W = draw(n_inputs, n_outputs, dtype, generator)
        W = W.t() if by_columns else W.t().contiguous()
        array = stored(W.t()).T if by_columns else stored(W)
        bias, scale = (torch.rand(n_outputs, generator=generator) + 0.5 for _ in range(2))
        matrices = ((array,), (bias.numpy(),), (scale.numpy(),))
        room = np.full((n, MAX_TOKENS * n_outputs), np.nan, np.float32)
        for T in range(1, MAX_TOKENS + 1):
            x = torch.randn(T, n_inputs, generator=generator)
            exact = x.double() @ W.double().t() * scale + bias
            magnitude = x.double().abs() @ W.double().abs().t() * scale + bias
            for how, before in ((products.STORE, 0.0), (products.ADD, 7.0)):
                out = np.full((T + 1, n_outputs), 7, np.float32)
                run_linear(x.numpy(), *matrices, out[:T], room, n, how)
                error = (torch.from_numpy(out[:T]) - (exact + before)).abs()
                # Any order of a sum of I products stays within so much (Higham 2002, section 3.1).
                assert error.le((n_inputs + 4) * UNIT * (magnitude + before)).all()
                assert (out[T] == 7).all()  # and nothing else is written


def test_tiles_keep_within_the_registers():
    for T in range(1, TOKENS + 1):
        assert 1 <= n_rows_of(T) <= MOST_ROWS
        assert T * n_rows_of(T) <= 3 * TOKENS


def double(x):
    return x + x


def test_compiled_code_is_not_used_again_when_any_of_the_sources_changes(tmp_path, monkeypatch):
    """Though the function itself, and the file it stands in, are the same."""
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    monkeypatch.setattr(numba_config, "CACHE_DIR", str(tmp_path / "kept"))

    def found_again() -> bool:
        compiled.source_stamp.cache_clear()
        made = compiled.kernel(double)
        assert made(2) == 4
        return bool(made.stats.cache_hits)

    assert not found_again()
    assert found_again()
    for name in compiled.SOURCES:
        (tmp_path / f"{name}.py").write_text("changed")
        assert not found_again()
        assert found_again()
    compiled.source_stamp.cache_clear()
    monkeypatch.undo()
    names = {name for name, _, _ in compiled.source_stamp()}
    assert names == {f"{name}.py" for name in compiled.SOURCES}
    with_kernels = {
        path.name
        for path in compiled.FOLDER.glob("*.py")
        if "from gptcli.engine.compiled import" in path.read_text()
    }
    assert with_kernels
    assert with_kernels < names
