"""The one table of dtypes: PyTorch's name, safetensors' name, the size, and how NumPy reads it."""

from dataclasses import dataclass
from typing import Literal, get_args


@dataclass(frozen=True)
class DType:
    """A dtype. `numpy` is the NumPy dtype that reads it, 16-bit integers for bfloat16; None if none does."""

    name: str
    safetensors: str
    bits: int
    numpy: str | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8


# All that the safetensors format has. Source: `Dtype` in safetensors/src/tensor.rs.
_TABLE = (
    DType("float64", "F64", 64, "<f8"),
    DType("float32", "F32", 32, "<f4"),
    DType("float16", "F16", 16, "<f2"),
    DType("bfloat16", "BF16", 16, "<u2"),
    DType("float8_e4m3fn", "F8_E4M3", 8),
    DType("float8_e5m2", "F8_E5M2", 8),
    DType("float8_e8m0fnu", "F8_E8M0", 8),
    DType("float6_e2m3", "F6_E2M3", 6),
    DType("float6_e3m2", "F6_E3M2", 6),
    DType("float4_e2m1", "F4", 4),
    DType("int64", "I64", 64, "<i8"),
    DType("int32", "I32", 32, "<i4"),
    DType("int16", "I16", 16, "<i2"),
    DType("int8", "I8", 8, "i1"),
    DType("uint64", "U64", 64, "<u8"),
    DType("uint32", "U32", 32, "<u4"),
    DType("uint16", "U16", 16, "<u2"),
    DType("uint8", "U8", 8, "u1"),
    DType("bool", "BOOL", 8, "u1"),
    DType("complex64", "C64", 64),
)
DTYPES = {dtype.name: dtype for dtype in _TABLE}
SAFETENSORS_DTYPES = {dtype.safetensors: dtype for dtype in _TABLE}

# The dtypes that a model computes in, and those that its weights may have in a file.
ComputeDType = Literal["float32", "bfloat16", "float16"]
COMPUTE_DTYPES: tuple[ComputeDType, ...] = get_args(ComputeDType)
WEIGHT_DTYPES = ("float32", "float16", "bfloat16", "float64")
