"""A tile of a matrix for several tokens, its sums in registers: what the compiler does not find by itself.

A weight is loaded and widened once for up to eight tokens, and goes into as many sums. What the next tile
reads is asked of memory ahead, where the processor does not guess it: tiles of columns are narrow, and rows
are short. The code is written in LLVM's language, for each number of tokens, by the functions here.

Each tile is a C function of its own, which kernels call by name: within them it would be compiled again with
every kernel around it. All their code stands in this file: Numba keeps it as long as the file is the same.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import cfunc, config, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

# What Numba compiles for: this processor, unless its environment says another.
_FEATURES = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
# The sums, some weights and an input fit the registers: 32 with AVX-512, 16 of half the width without.
LANES, TOKENS = (16, 8) if "+avx512f" in _FEATURES.split(",") else (8, 4)
COLUMNS = 3 * LANES
MOST_ROWS = 8
TILES_AHEAD = 4  # of rows; by measurement, on the head of GPT-2 small in int8, as MOST_ROWS
LINE = 64  # bytes that memory gives at once
SIZES = {types.float32: 4, types.uint16: 2, types.int16: 2, types.int8: 1}  # what `numbers.widen` knows
F32, I32, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)


@register_jitable
def n_rows_of(n_tokens):
    """How many rows make a tile for so many tokens."""
    return min(MOST_ROWS, 3 * TOKENS // n_tokens)


def _tile(code: Callable[..., None]) -> Any:
    """The body of a tile's C function: `code` for each number of tokens, and a jump to the one wanted."""

    @intrinsic
    def body(_context, x, _x_bytes, W, _W_bytes, sums, _sums_bytes, _n_tokens, _n_inputs, _ahead):
        def generate(context, builder, signature, arguments):
            x_, x_bytes, W_, W_bytes, sums_, sums_bytes, n_tokens, n_inputs, ahead = arguments
            kinds = (types.float32, W.dtype, types.float32)
            rows = ((x_, x_bytes), (W_, W_bytes), (sums_, sums_bytes))
            matrices = [_Matrix(builder, kind, *row) for kind, row in zip(kinds, rows, strict=True)]
            end = builder.append_basic_block("end")
            choice = builder.switch(n_tokens, end)
            for T in range(1, TOKENS + 1):
                choice.add_case(INDEX(T), block := builder.append_basic_block(f"tokens{T}"))
                with builder.goto_block(block):
                    code(builder, T, *matrices, n_inputs, ahead)
                    builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        n = types.intp
        return types.void(x, n, W, n, sums, n, n, n, n), generate

    return body


class _Matrix:
    """Numbers of one type in memory, rows as far apart as they are."""

    def __init__(self, builder: Any, dtype: Any, address: Any, row_bytes: Any) -> None:
        self.dtype, self._builder, self._address = dtype, builder, address
        self._width = builder.sdiv(row_bytes, INDEX(SIZES[dtype]))

    def at(self, row: Any, column: Any) -> Any:
        """The address of one number."""
        place = self._builder.add(self._builder.mul(row, self._width), column)
        return self._builder.gep(self._address, [place])


def _add_columns(n_vectors: int) -> Callable[..., None]:
    """The code of x[:, :n_inputs] · W[:n_inputs, :n_vectors · LANES] to sums, for T tokens."""

    def code(builder, T, x, W, sums, n_inputs, ahead):
        columns = [INDEX(v * LANES) for v in range(n_vectors)]
        targets = [sums.at(INDEX(t), column) for t in range(T) for column in columns]
        totals = [_variable(builder, _load(builder, target)) for target in targets]
        with cgutils.for_range(builder, n_inputs) as loop:
            for column in columns:
                _prefetch(builder, W.at(builder.add(loop.index, ahead), column))
            weights = [_load(builder, W.at(loop.index, column), W.dtype) for column in columns]
            for t in range(T):
                value = _everywhere(builder, builder.load(x.at(INDEX(t), loop.index)))
                for weight, total in zip(weights, totals[t * n_vectors :], strict=False):
                    _add_product(builder, total, value, weight)
        for total, target in zip(totals, targets, strict=True):
            pointer = builder.bitcast(target, VECTOR.as_pointer())
            builder.store(builder.load(total), pointer, align=4)

    return code


def _dot_rows(builder, T, x, W, sums, n_inputs, _ahead):
    """The code of x · Wᵀ into sums, for T tokens and `n_rows_of(T)` rows; n_inputs is a multiple of LANES."""
    rows = [INDEX(r) for r in range(n_rows_of(T))]
    totals = [_variable(builder, ir.Constant(VECTOR, [0.0] * LANES)) for _ in range(T) for _ in rows]
    # What is ahead is asked for by lines, not by rows: they are one piece of memory, and come in order so.
    n_lines = -(-len(rows) * LANES * SIZES[W.dtype] // LINE)
    far = W.at(INDEX(TILES_AHEAD * len(rows)), INDEX(0))
    with cgutils.for_range_slice(builder, INDEX(0), n_inputs, INDEX(LANES)) as (i, _):
        line = builder.mul(builder.udiv(i, INDEX(LANES)), INDEX(n_lines))
        for each in range(n_lines):
            place = builder.mul(builder.add(line, INDEX(each)), INDEX(LINE // SIZES[W.dtype]))
            _prefetch(builder, builder.gep(far, [place]))
        weights = [_load(builder, W.at(row, i), W.dtype) for row in rows]
        for t in range(T):
            value = _load(builder, x.at(INDEX(t), i))
            for weight, total in zip(weights, totals[t * len(rows) :], strict=False):
                _add_product(builder, total, value, weight)
    for t in range(T):
        for row, total in zip(rows, totals[t * len(rows) :], strict=False):
            builder.store(_sum_of(builder, builder.load(total)), sums.at(INDEX(t), row))


def _load(builder: Any, address: Any, dtype: Any = types.float32) -> Any:
    """LANES numbers of a type as float32: `numbers.widen`, for many. They need not be aligned."""
    one = F32 if dtype == types.float32 else ir.IntType(8 * SIZES[dtype])
    pointer = builder.bitcast(address, ir.VectorType(one, LANES).as_pointer())
    stored = builder.load(pointer, align=SIZES[dtype])
    if dtype == types.uint16:  # bfloat16
        words = builder.zext(stored, ir.VectorType(I32, LANES))
        return builder.bitcast(builder.shl(words, ir.Constant(words.type, [16] * LANES)), VECTOR)
    if dtype == types.int16:  # float16
        return builder.fpext(builder.bitcast(stored, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    return builder.sitofp(stored, VECTOR) if dtype == types.int8 else stored


def _everywhere(builder: Any, value: Any) -> Any:
    """One float32 in every lane."""
    nothing, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(nothing, value, I32(0)), nothing, first)


def _variable(builder: Any, value: Any) -> Any:
    """A variable, which the compiler will keep in a register."""
    variable = cgutils.alloca_once(builder, VECTOR)
    builder.store(value, variable)
    return variable


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> None:
    """total += a·b for a variable, rounded once where the processor can."""
    product = builder.fmul(a, b, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


def _sum_of(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(F32, [F32, VECTOR])
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    add = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(add, [F32(0), vector], fastmath=("reassoc",))


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for a line of memory, to be read once, as far as the second cache; any address will do."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(ask, [builder.bitcast(address, pointer), I32(0), I32(2), I32(1)])


_wide_body, _narrow_body, _rows_body = (
    _tile(code) for code in (_add_columns(COLUMNS // LANES), _add_columns(1), _dot_rows)
)


def wide_tile(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead):
    _wide_body(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead)


def narrow_tile(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead):
    _narrow_body(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead)


def rows_tile(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead):
    _rows_body(x, x_bytes, W, W_bytes, sums, sums_bytes, n_tokens, n_inputs, ahead)


def _name(tile: Callable[..., None], dtype: Any) -> str:
    return f"gptcli_{tile.__name__}_{dtype}"


@cache
def provide(dtype: Any) -> list[Any]:
    """Compile the tiles of a weight type, or load them, and make them known by name; gives what keeps them.

    That comes before a kernel that calls them is loaded.
    """
    made, n, numbers = [], types.intp, types.CPointer(types.float32)
    signature = types.void(numbers, n, types.CPointer(dtype), n, numbers, n, n, n, n)
    for tile in (wide_tile, narrow_tile, rows_tile):
        try:
            function = cfunc(signature, cache=True)(tile)
        except RuntimeError:  # no folder for it, as in `compiled.kernel`
            function = cfunc(signature)(tile)
        llvmlite.binding.add_symbol(_name(tile, dtype), function.address)
        made.append(function)
    return made


def _call(tile: Callable[..., None]) -> Any:
    """What compiled code calls: tile(x[:, i:], W[row:, column:], sums[:, k:], n_inputs, ahead), by arrays."""

    @intrinsic
    def call(_context, x, _i, W, _row, _column, sums, _k, _n_inputs, _ahead):
        def generate(context, builder, _signature, arguments):
            x_, i, W_, row, column, sums_, k, n_inputs, ahead = arguments
            places = ((x, x_, INDEX(0), i), (W, W_, row, column), (sums, sums_, INDEX(0), k))
            passed = []
            for kind, value, first_row, first_column in places:
                array = context.make_array(kind)(context, builder, value)
                n_bytes = cgutils.unpack_tuple(builder, array.strides)[0]
                passed += [
                    _Matrix(builder, kind.dtype, array.data, n_bytes).at(first_row, first_column),
                    n_bytes,
                ]
            n_tokens = cgutils.unpack_tuple(builder, context.make_array(x)(context, builder, x_).shape)[0]
            passed += [n_tokens, n_inputs, ahead]
            kind = ir.FunctionType(ir.VoidType(), [each.type for each in passed])
            function = cgutils.get_or_insert_function(builder.module, kind, _name(tile, W.dtype))
            builder.call(function, passed)
            return context.get_dummy_value()

        n = types.intp
        return types.void(x, n, W, n, n, sums, n, n, n), generate

    return call


call_wide_tile, call_narrow_tile, call_rows_tile = (
    _call(tile) for tile in (wide_tile, narrow_tile, rows_tile)
)
