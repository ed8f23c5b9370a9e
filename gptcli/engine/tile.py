"""A tile of a matrix for several tokens, its sums in registers: what the compiler does not find by itself.

A weight is loaded and widened once for all tokens and goes into as many sums. What the next tile reads is
asked of memory ahead, where the processor does not guess it: tiles of columns are narrow, and rows are short.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from gptcli.engine import vectors
from gptcli.engine.vectors import INDEX, IS_WIDE, LANES, LINE, SIZES, VECTOR, Matrix

# The sums, some weights and an input fit the registers: 32 with AVX-512, 16 of half the width without.
TOKENS = 8 if IS_WIDE else 4
COLUMNS = 3 * LANES
MOST_ROWS = 8
ZEROS = ir.Constant(VECTOR, [0.0] * LANES)
TILES_AHEAD = 4  # of rows; by measurement, on the head of GPT-2 small in int8, as MOST_ROWS


@register_jitable
def n_rows_of(n_tokens):
    """How many rows make a tile for so many tokens."""
    return min(MOST_ROWS, 3 * TOKENS // n_tokens)


def _columns_tile(n_vectors: int) -> Any:
    """The tile of n_vectors · LANES columns, for compiled code."""

    @intrinsic
    def tile(_context, x, _i, W, _j, sums, _k, _n_inputs, _ahead):
        """x[:, i : i + n_inputs] · W[i : i + n_inputs, j : j + columns] to sums[:, k : k + columns].

        x is [T, I], of TOKENS rows or fewer, W [I, O]. Weights are asked for `ahead` rows further down.
        """

        def generate(context, builder, _signature, arguments):
            x_, i, W_, j, sums_, k, n_inputs, ahead = arguments
            arrays = (Matrix(context, builder, *of) for of in ((x, x_), (W, W_), (sums, sums_)))
            places = {"i": i, "j": j, "k": k, "n_inputs": n_inputs, "ahead": ahead}
            _for_each_count(builder, partial(_add_columns, builder, n_vectors=n_vectors, **places), *arrays)
            return context.get_dummy_value()

        n = types.intp
        return types.void(x, n, W, n, sums, n, n, n), generate

    return tile


columns_tile, narrow_tile = _columns_tile(COLUMNS // LANES), _columns_tile(1)


def _add_columns(builder, T, x, W, sums, *, n_vectors, i, j, k, n_inputs, ahead):
    """The code of a tile of columns for T tokens."""
    lanes = [INDEX(v * LANES) for v in range(n_vectors)]
    targets = [sums.at(INDEX(t), builder.add(k, lane)) for t in range(T) for lane in lanes]
    totals = [_variable(builder, vectors.load(builder, target)) for target in targets]
    with cgutils.for_range(builder, n_inputs) as loop:
        row, further = builder.add(i, loop.index), builder.add(builder.add(i, loop.index), ahead)
        columns = [builder.add(j, lane) for lane in lanes]
        for column in columns:
            vectors.prefetch(builder, W.at(further, column))
        weights = [vectors.load(builder, W.at(row, column), W.dtype) for column in columns]
        for t in range(T):
            value = vectors.everywhere(builder, builder.load(x.at(INDEX(t), row)))
            for weight, total in zip(weights, totals[t * n_vectors :], strict=False):
                vectors.add_product(builder, total, value, weight)
    for total, target in zip(totals, targets, strict=True):
        vectors.store(builder, builder.load(total), target)


@intrinsic
def rows_tile(_context, x, W, _j, sums, _k, _n_inputs):
    """x[:, :n_inputs] · W[j : j + rows, :n_inputs]ᵀ into sums[:, k : k + rows], of `n_rows_of(T)` rows.

    x is [T, I], of TOKENS rows or fewer, W [O, I], rows behind one another; n_inputs a multiple of LANES.
    """

    def generate(context, builder, _signature, arguments):
        x_, W_, j, sums_, k, n_inputs = arguments
        arrays = (Matrix(context, builder, *of) for of in ((x, x_), (W, W_), (sums, sums_)))
        _for_each_count(builder, partial(_dot_rows, builder, j=j, k=k, n_inputs=n_inputs), *arrays)
        return context.get_dummy_value()

    n = types.intp
    return types.void(x, W, n, sums, n, n), generate


def _dot_rows(builder, T, x, W, sums, *, j, k, n_inputs):
    """The code of a tile of rows for T tokens."""
    rows = [INDEX(r) for r in range(n_rows_of(T))]
    totals = [_variable(builder, ZEROS) for _ in range(T) for _ in rows]
    # What is ahead is asked for by lines, not by rows: they are one piece of memory, and come in order so.
    n_lines = -(-len(rows) * LANES * SIZES[W.dtype] // LINE)
    far = W.at(builder.add(j, INDEX(TILES_AHEAD * len(rows))), INDEX(0))
    with cgutils.for_range_slice(builder, INDEX(0), n_inputs, INDEX(LANES)) as (i, _):
        line = builder.mul(builder.udiv(i, INDEX(LANES)), INDEX(n_lines))
        for each in range(n_lines):
            place = builder.mul(builder.add(line, INDEX(each)), INDEX(LINE // SIZES[W.dtype]))
            vectors.prefetch(builder, builder.gep(far, [place]))
        weights = [vectors.load(builder, W.at(builder.add(j, row), i), W.dtype) for row in rows]
        for t in range(T):
            value = vectors.load(builder, x.at(INDEX(t), i))
            for weight, total in zip(weights, totals[t * len(rows) :], strict=False):
                vectors.add_product(builder, total, value, weight)
    for t in range(T):
        for row, total in zip(rows, totals[t * len(rows) :], strict=False):
            total_sum = vectors.sum_of(builder, builder.load(total))
            builder.store(total_sum, sums.at(INDEX(t), builder.add(k, row)))


def _for_each_count(builder: Any, code: Callable[..., None], x: Matrix, W: Matrix, sums: Matrix) -> None:
    """The code for each number of tokens, and a jump to that for those of x."""
    end = builder.append_basic_block("end")
    choice = builder.switch(x.n_rows, end)
    for T in range(1, TOKENS + 1):
        block = builder.append_basic_block(f"tokens{T}")
        choice.add_case(INDEX(T), block)
        with builder.goto_block(block):
            code(T, x, W, sums)
            builder.branch(end)
    builder.position_at_end(end)


def _variable(builder: Any, value: Any) -> Any:
    """A variable, which the compiler will keep in a register."""
    variable = cgutils.alloca_once(builder, VECTOR)
    builder.store(value, variable)
    return variable
