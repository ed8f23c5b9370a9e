"""How a process of `torchrun` finds its device and the others, and which one tells why a run has ended."""

from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gptcli.errors import DeviceError, UsageError, count
from gptcli.parallel.group import Group
from gptcli.system.device import find_device
from gptcli.system.torchrun import Torchrun


def join(torchrun: Torchrun, device: str) -> Group:
    """Meet the other processes, on the GPU of this process's number or on the CPU.

    Raises `UsageError` for a numbered device, `DeviceError` for more processes than GPUs, `ResourceError`
    where the others do not come.
    """
    if ":" in device:
        raise UsageError(f"--device {device}: under torchrun every process takes a GPU of its own; say cuda")
    place = find_device(device)
    if place.type == "cuda":
        n = torch.cuda.device_count()
        if torchrun.local_world_size > n:
            raise DeviceError(
                f"{torchrun.local_world_size} processes on a machine with {count(n, 'GPU')};"
                " say --device cpu, or fewer"
            )
        place = torch.device("cuda", torchrun.local_rank)
    return Group(torchrun, place)


def is_first_to_fail(torchrun: Torchrun) -> bool:
    """Whether no other process of this run has asked this before: one tells why the run has ended.

    Where `torchrun`, which keeps count, cannot be asked any more, it is the first process.
    """
    if torchrun.master_addr is None or torchrun.master_port is None:
        return torchrun.rank == 0
    try:
        # torchrun's own, which outlives every process that it has started.
        store = TCPStore(torchrun.master_addr, torchrun.master_port, timeout=timedelta(seconds=5))
        return store.add(f"gptcli/failed/{torchrun.restart_count}", 1) == 1
    except (ValueError, RuntimeError):
        return torchrun.rank == 0
