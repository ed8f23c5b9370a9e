"""The start of a process of `torchrun`: its device and group, and whether it reports the run's failure."""

from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gptcli.errors import DeviceError, UsageError, count
from gptcli.parallel.process_group import ProcessGroup
from gptcli.system.device import find_device, torch_device
from gptcli.system.torchrun import Torchrun


def join(torchrun: Torchrun, device: str) -> ProcessGroup:
    """Join the other processes, on the GPU with this process's local rank or on the CPU.

    Raises `UsageError` for a numbered device, `DeviceError` for more processes than GPUs, `ResourceError` if
    the others do not start.
    """
    if ":" in device:
        raise UsageError(f"--device {device}: under torchrun every process takes its own GPU; say cuda")
    place = torch_device(find_device(device))
    if place.type == "cuda":
        n = torch.cuda.device_count()
        if torchrun.local_world_size > n:
            raise DeviceError(
                f"{torchrun.local_world_size} processes on a machine with {count(n, 'GPU')};"
                " say --device cpu, or fewer"
            )
        place = torch.device("cuda", torchrun.local_rank)
    return ProcessGroup(torchrun, place)


def is_first_to_fail(torchrun: Torchrun) -> bool:
    """Return whether no other process of this run has called this before, so that one reports the failure.

    `torchrun` keeps the count. If it cannot be reached any more, the answer is true for process 0.
    """
    if torchrun.master_addr is None or torchrun.master_port is None:
        return torchrun.rank == 0
    try:
        # This store is torchrun's own: it outlives the processes.
        store = TCPStore(torchrun.master_addr, torchrun.master_port, timeout=timedelta(seconds=5))
        return store.add(f"gptcli/failed/{torchrun.restart_count}", 1) == 1
    except (ValueError, RuntimeError):
        return torchrun.rank == 0
