"""The start of a process of `torchrun`: its device and group, and whether it reports the run's failure."""

import os
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gptcli.errors import DeviceError, UsageError
from gptcli.parallel.process_group import ProcessGroup
from gptcli.system.device import find_device
from gptcli.system.torchrun import Torchrun


def join(torchrun: Torchrun, device: str) -> ProcessGroup:
    """Join the other processes, on the GPU with this process's local rank or on the CPU.

    Raises `UsageError` for a numbered device, `DeviceError` for more processes than GPUs, `ResourceError` if
    the others do not start.
    """
    if ":" in device:
        raise UsageError(f"--device {device}: under torchrun every process takes its own GPU; say cuda")
    place = find_device(device)
    if place.type == "cuda":
        n = torch.cuda.device_count()
        if torchrun.local_size > n:
            raise DeviceError(
                f"{torchrun.local_size} processes on a machine with {n} GPUs; say --device cpu, or fewer"
            )
        place = torch.device("cuda", torchrun.local_rank)
    return ProcessGroup(torchrun, place)


def is_first_to_fail(torchrun: Torchrun) -> bool:
    """Return whether no other process of this run has called this before, so that one reports the failure.

    `torchrun` keeps the count. If it cannot be reached any more, the answer is true for process 0.
    """
    try:
        # This store is torchrun's own: it outlives the processes.
        store = TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=5)
        )
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return store.add(f"gptcli/failed/{restart}", 1) == 1
    except (KeyError, ValueError, RuntimeError):
        return torchrun.rank == 0
