"""The devices that a model may run on: which there are, what memory they have left, how fast it is read."""

import ctypes
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptcli.errors import DeviceError
from gptcli.system.memory import available_bytes
from gptcli.system.threads import default_threads


@dataclass(frozen=True)
class Device:
    """A device by PyTorch's names: `cpu`, or `cuda` and its number."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")


def find_device(name: str) -> Device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`; raises `DeviceError` if it is not there.

    `cpu` never asks CUDA anything, and `auto` imports torch only where the driver finds a GPU.
    """
    if name == "cpu" or (name == "auto" and not driver_finds_gpus()):
        return CPU
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return Device("cuda", 0) if n_gpus else CPU
    if n_gpus == 0:
        why = "finds no CUDA device" if torch.version.cuda else "is built without CUDA"
        raise DeviceError(f"--device {name}: PyTorch {torch.__version__} {why}; use --device cpu")
    index = int(name.partition(":")[2] or 0)
    if index >= n_gpus:
        there = "only cuda:0" if n_gpus == 1 else f"cuda:0 to cuda:{n_gpus - 1}"
        raise DeviceError(f"--device {name}: there is {there}")
    return Device("cuda", index)


def driver_finds_gpus() -> bool:
    """Return whether NVIDIA's driver is there and finds a GPU (CUDA driver API, `cuDeviceGetCount`)."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(library)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


def free_bytes(device: Device) -> int:
    """Return the bytes that may still be taken on a device."""
    if device.type == "cpu":
        return available_bytes()
    import torch

    return torch.cuda.mem_get_info(str(device))[0]


def torch_device(device: Device) -> Any:
    """Return PyTorch's own object for a device."""
    import torch

    return torch.device(str(device))


def read_bandwidth() -> float:
    """Return the bytes per second that all usable cores together read from memory; takes 0.1 s.

    The fastest of a few sums counts: NumPy lets go of the interpreter's lock while it adds.
    """
    n_threads = default_threads()
    parts = np.array_split(np.ones(64 << 20, np.float32), n_threads)  # 256 MiB, more than any cache
    seconds = []
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(4):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - start)
    return sum(part.nbytes for part in parts) / min(seconds)
