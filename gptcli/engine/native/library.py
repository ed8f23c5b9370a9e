"""The compiled kernels: structs and signatures, as `csrc/model.h` and `csrc/api.c` declare them."""

import ctypes
import functools
from ctypes import c_char_p, c_double, c_int32, c_int64, c_void_p
from pathlib import Path

LIBRARY = Path(__file__).parent / "kernels.so"
ABI_VERSION = 2
STEPS_PER_LAYER = 4
DTYPES = {"float32": 0, "uint16": 1, "float16": 2, "int8": 3}  # uint16 holds bfloat16
ACTIVATIONS = ("identity", "gelu_tanh", "gelu", "gelu_sigmoid", "relu", "silu", "sigmoid", "tanh", "swish")


class KernelsUnavailableError(RuntimeError):
    """The kernels were not compiled for this machine, or by another version of this program."""


class Matrix(ctypes.Structure):
    """A matrix from I inputs to O outputs, by rows [O, I] or by columns [I, O]."""

    _fields_ = (
        ("data", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("n_inputs", c_int64),
        ("n_outputs", c_int64),
        ("stride", c_int64),
        ("dtype", c_int32),
        ("by_columns", c_int32),
    )


class Norm(ctypes.Structure):
    """Scale [C] of a LayerNorm, and shift [C] or NULL."""

    _fields_ = (("scale", c_void_p), ("shift", c_void_p))


class FeedForward(ctypes.Structure):
    """A feed-forward of two matrices, or of three with a gate."""

    _fields_ = (
        ("gate", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("activation", c_int64),
        ("swish_beta", c_double),
    )


class Layer(ctypes.Structure):
    """A transformer block; its feed-forwards are those of every token, then the experts."""

    _fields_ = (
        ("norm1", Norm),
        ("norm2", Norm),
        ("qkv", Matrix * 3),
        ("out_proj", Matrix),
        ("router", Matrix),
        ("feed_forwards", ctypes.POINTER(FeedForward)),
        ("n_always", c_int64),
        ("n_experts", c_int64),
        ("n_chosen", c_int64),
        ("n_qkv", c_int64),
        ("score_scale", c_double),
    )


class Model(ctypes.Structure):
    """A whole model."""

    _fields_ = (
        ("n_layers", c_int64),
        ("n_heads", c_int64),
        ("emb_dim", c_int64),
        ("ffn_dim", c_int64),
        ("vocab_size", c_int64),
        ("layers", ctypes.POINTER(Layer)),
        ("tok_emb", Matrix),
        ("pos_emb", Matrix),
        ("final_norm", Norm),
        ("head", Matrix),
        ("int8_head", Matrix),
        ("error_bound", c_void_p),
        ("near_tie", c_double),
        ("norm_eps", c_double),
        ("norm_unbiased", c_int32),
        ("n_threads", c_int32),
    )


class Row(ctypes.Structure):
    """The new tokens of one sequence, and its cache."""

    _fields_ = (
        ("cache", c_void_p),
        ("capacity", c_int64),
        ("start", c_int64),
        ("n_tokens", c_int64),
        ("n_logits", c_int64),
    )


class Pass(ctypes.Structure):
    """A forward pass: its arrays, and how much of it is done."""

    _fields_ = (
        ("ids", c_void_p),
        ("rows", ctypes.POINTER(Row)),
        ("n_rows", c_int64),
        ("n_tokens", c_int64),
        ("n_logits", c_int64),
        ("longest", c_int64),
        ("argmax_only", c_int64),
        ("is_float64", c_int64),
        ("logits", c_void_p),
        ("scratch", c_void_p),
        ("next_step", c_int64),
    )


_P, _N, _D = c_void_p, c_int64, c_double
_SIGNATURES = {
    "abi_version": (_N, ()),
    "max_tokens": (_N, ()),
    "variant_name": (c_char_p, (_N,)),
    "active_variant": (c_char_p, ()),
    "force_variant": (_N, (c_char_p,)),
    "scratch_bytes": (_N, (_P, _N, _N, _N)),
    "linear_bytes": (_N, (_P, _N)),
    "attend_bytes": (_N, (_N, _N, _N, _N)),
    "forward": (None, (_P, _P)),
    "linear": (None, (_P, _P, _N, _N, _D, _N, _P, _N, _P)),
    "layer_norm": (None, (_P, _N, _N, _P, _D, _N, _P, _N)),
    "attend": (None, (_P, _N, _N, _N, _N, _P, _N, _P, _N, _P)),
    "activate": (None, (_P, _N, _N, _D)),
    "exit_on_bus_error": (None, (c_char_p,)),
}


@functools.cache
def load_library() -> ctypes.CDLL:
    """Load the kernels; the variant for this processor is chosen then. Raises KernelsUnavailableError."""
    if not LIBRARY.exists():
        raise KernelsUnavailableError("the native kernels were not compiled when gptcli was installed")
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, f"gptcli_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"the compiled kernels cannot be loaded: {error}") from error
    if (version := library.gptcli_abi_version()) != ABI_VERSION:
        raise KernelsUnavailableError(f"the kernels have version {version}, not {ABI_VERSION}: install again")
    return library


def usable_variants() -> list[str]:
    """Return the names of the variants that this processor can run, from the slowest to the fastest."""
    library, names = load_library(), list[str]()
    while (name := library.gptcli_variant_name(len(names))) is not None:
        names.append(name.decode())
    return names


def active_variant() -> str:
    """Return the name of the variant in use."""
    name: bytes = load_library().gptcli_active_variant()
    return name.decode()


def force_variant(name: str) -> None:
    """Use a variant, in the whole process; raises ValueError if the processor cannot run it."""
    if not load_library().gptcli_force_variant(name.encode()):
        raise ValueError(f"no kernels {name!r} for this processor, which runs {', '.join(usable_variants())}")


def exit_on_bus_error(message: str) -> None:
    """End the process with this message on stderr and status 1 if a mapped file is cut while it is read."""
    load_library().gptcli_exit_on_bus_error(message.encode("utf-8", errors="replace"))
