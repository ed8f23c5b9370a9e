"""LLVM's vectors for code that Numba generates: many weights at once, widened, and memory asked for ahead."""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.core import cgutils

# What Numba compiles for: this processor, unless its environment says another.
_FEATURES = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
IS_WIDE = "+avx512f" in _FEATURES.split(",")
LANES = 16 if IS_WIDE else 8  # numbers in a vector
LINE = 64  # bytes that memory gives at once
F32, I32, INDEX = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
SIZES = {types.float32: 4, types.uint16: 2, types.int16: 2, types.int8: 1}  # what `numbers.widen` knows


class Matrix:
    """An array's memory: numbers of one type, rows without gaps in themselves."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        """Of an argument `value` of the array type `kind`."""
        self._builder, self.dtype = builder, kind.dtype
        array = context.make_array(kind)(context, builder, value)
        self.n_rows, _ = cgutils.unpack_tuple(builder, array.shape)
        self._data, n_bytes = array.data, cgutils.unpack_tuple(builder, array.strides)[0]
        self._width = builder.sdiv(n_bytes, INDEX(SIZES[kind.dtype]))

    def at(self, row: Any, column: Any) -> Any:
        """The address of one number."""
        place = self._builder.add(self._builder.mul(row, self._width), column)
        return self._builder.gep(self._data, [place])


def load(builder: Any, address: Any, dtype: Any = types.float32) -> Any:
    """LANES numbers of a type as float32: `numbers.widen`, for many. They need not be aligned."""
    pointer = ir.VectorType(address.type.pointee, LANES).as_pointer()
    stored = builder.load(builder.bitcast(address, pointer), align=SIZES[dtype])
    if dtype == types.uint16:  # bfloat16
        words = builder.zext(stored, ir.VectorType(I32, LANES))
        return builder.bitcast(builder.shl(words, ir.Constant(words.type, [16] * LANES)), VECTOR)
    if dtype == types.int16:  # float16
        return builder.fpext(builder.bitcast(stored, ir.VectorType(ir.HalfType(), LANES)), VECTOR)
    return builder.sitofp(stored, VECTOR) if dtype == types.int8 else stored


def store(builder: Any, vector: Any, address: Any) -> None:
    """LANES float32 numbers to an address."""
    builder.store(vector, builder.bitcast(address, VECTOR.as_pointer()), align=4)


def everywhere(builder: Any, value: Any) -> Any:
    """One float32 in every lane."""
    nothing, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(nothing, value, I32(0)), nothing, first)


def add_product(builder: Any, total: Any, a: Any, b: Any) -> None:
    """total += a·b for a variable, rounded once where the processor can."""
    product = builder.fmul(a, b, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


def sum_of(builder: Any, vector: Any) -> Any:
    """The sum of the lanes."""
    kind = ir.FunctionType(F32, [F32, VECTOR])
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    add = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(add, [F32(0), vector], fastmath=("reassoc",))


def prefetch(builder: Any, address: Any) -> None:
    """Ask for a line of memory, to be read once, as far as the second cache; any address will do."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(ask, [builder.bitcast(address, pointer), I32(0), I32(2), I32(1)])
