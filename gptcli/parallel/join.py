"""How a process of `torchrun` finds its device and the others, and which one tells why a run has ended."""

import os
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gptcli.errors import DeviceError, UsageError
from gptcli.parallel.group import Group
from gptcli.system.device import find_device
from gptcli.system.torchrun import Torchrun


def join(told: Torchrun, device: str) -> Group:
    """Meet the other processes, on the GPU of this process's number or on the CPU.

    Raises `UsageError` for a numbered device, `DeviceError` for more processes than GPUs, `ResourceError`
    where the others do not come.
    """
    if ":" in device:
        raise UsageError(f"--device {device}: under torchrun every process takes a GPU of its own; say cuda")
    place = find_device(device)
    if place.type == "cuda":
        n = torch.cuda.device_count()
        if told.local_size > n:
            raise DeviceError(
                f"{told.local_size} processes on a machine with {n} GPUs; say --device cpu, or fewer"
            )
        place = torch.device("cuda", told.local_rank)
    return Group(told, place)


def is_first_to_fail(told: Torchrun) -> bool:
    """Whether no other process of this run has asked this before: one tells why the run has ended.

    Where `torchrun`, which keeps count, cannot be asked any more, it is the first process.
    """
    try:
        # torchrun's own, which outlives every process that it has started.
        store = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=5)
        )
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return store.add(f"gptcli/failed/{restart}", 1) == 1
    except (KeyError, ValueError, RuntimeError):
        return told.rank == 0
