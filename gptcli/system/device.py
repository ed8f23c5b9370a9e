"""The devices that a model may run on, their free memory, and the memory bandwidth of this machine."""

import time

import torch

from gptcli.errors import DeviceError
from gptcli.system.memory import available_bytes


def find_device(name: str) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `cuda:N`; `cpu` never asks CUDA anything.

    Raises `DeviceError` for a GPU that this machine does not have.
    """
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if count == 0:
        why = "finds no CUDA device" if torch.version.cuda else "is built without CUDA"
        raise DeviceError(f"--device {name}: PyTorch {torch.__version__} {why}; use --device cpu")
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        there = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise DeviceError(f"--device {name}: there is {there}")
    return torch.device("cuda", index)


def free_bytes(device: torch.device) -> int:
    """Return how many bytes may still be allocated on a device."""
    return available_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]


def read_bandwidth() -> float:
    """Return how many bytes a second this machine reads from memory: the best of four sums, 0.1 s in all."""
    numbers = torch.ones(64 << 20)  # 256 MiB, more than any cache
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - start)
    return numbers.nbytes / min(seconds)
