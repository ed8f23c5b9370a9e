"""Weights as they lie in memory, and the float32 that each stands for: what Numba does not know by itself."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload


@intrinsic
def _from_bfloat16(_context, _bits):
    """uint16 → float32: bfloat16 is the upper half of a float32."""

    def generate(_context, builder, _signature, arguments):
        word = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(word, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _from_float16(_context, _bits):
    """int16 → float32: IEEE half precision, converted by the processor."""

    def generate(_context, builder, _signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic
def _to_bfloat16(_context, _value):
    """float32 → uint16, to the nearest, ties to even."""

    def generate(_context, builder, _signature, arguments):
        word_type = ir.IntType(32)
        word = builder.bitcast(arguments[0], word_type)
        upper = builder.lshr(word, ir.Constant(word_type, 16))
        odd = builder.and_(upper, ir.Constant(word_type, 1))
        rounded = builder.add(word, builder.add(odd, ir.Constant(word_type, 0x7FFF)))
        return builder.trunc(builder.lshr(rounded, ir.Constant(word_type, 16)), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _to_float16(_context, _value):
    """float32 → int16."""

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.int16(types.float32), generate


@intrinsic
def _power_of_two(_context, _exponent):
    """int32 n → 2ⁿ as float32, for n from -126 to 127."""

    def generate(_context, builder, _signature, arguments):
        word_type = ir.IntType(32)
        biased = builder.add(arguments[0], ir.Constant(word_type, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(word_type, 23)), ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always")
def exp(x):
    """eˣ in float32, to two units of rounding; plain arithmetic, of which the compiler makes many at once.

    Range reduction and polynomial: Cody & Waite 1980, "Software Manual for the Elementary Functions"; the
    coefficients are Taylor's up to the sixth power, whose rest is below a unit for |r| <= ln(2) / 2.
    """
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(1 / 2)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    return p * _power_of_two(np.int32(n))


def widen(_stored):
    """float32 itself, bfloat16 as uint16, float16 as int16, or int8 → float32."""
    raise NotImplementedError("compiled code only")


def narrow(_value, _like):
    """A float32 as an array of `like`'s type stores it."""
    raise NotImplementedError("compiled code only")


@overload(widen, inline="always")
def _widen(stored):
    if stored == types.uint16:
        return lambda stored: _from_bfloat16(stored)
    if stored == types.int16:
        return lambda stored: _from_float16(stored)
    if stored == types.int8:
        return lambda stored: np.float32(stored)
    return lambda stored: stored


@overload(narrow, inline="always")
def _narrow(value, like):
    if like.dtype == types.uint16:
        return lambda value, like: _to_bfloat16(np.float32(value))
    if like.dtype == types.int16:
        return lambda value, like: _to_float16(np.float32(value))
    return lambda value, like: value
