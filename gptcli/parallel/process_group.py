"""The processes that share a model, and their collectives: by gloo between CPUs, by NCCL between GPUs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gptcli.config.partition import Rank
from gptcli.errors import GptcliError, ResourceError
from gptcli.system.torchrun import Torchrun

# How long to wait for the others to start, and for them to reach the same collective on tensors. A process
# that ends is noticed at once.
JOIN_TIMEOUT, TENSOR_TIMEOUT = timedelta(seconds=60), timedelta(minutes=5)
# An object from process 0 may be read from its standard input, which may take any time.
OBJECT_TIMEOUT = timedelta(days=7)
T = TypeVar("T")


class ProcessGroup:
    """This process among those that share a model.

    All of them must call the same methods in the same order. Every method raises `ResourceError` if another
    process has ended or cannot be reached.
    """

    def __init__(self, torchrun: Torchrun, device: torch.device) -> None:
        """Wait for the other processes; `device` is where this one computes."""
        self.ranks, self.device = Rank(torchrun.rank, torchrun.world_size), device
        self.local_size = torchrun.local_world_size
        self.backend = "gloo" if device.type == "cpu" else "nccl"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group("gloo", timeout=JOIN_TIMEOUT)
            self._tensor_group = dist.new_group(backend=self.backend, timeout=TENSOR_TIMEOUT)
            self._object_group = dist.new_group(backend="gloo", timeout=OBJECT_TIMEOUT)
        except (RuntimeError, ValueError) as error:
            raise ResourceError(
                f"the {torchrun.world_size} processes of this run did not meet: {_first_sentence(error)}"
            ) from error

    @property
    def is_first(self) -> bool:
        """Return whether this is process 0, which reads the input and writes the output for all."""
        return self.ranks.rank == 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of x over all processes, in place of x; every process gets the same bits."""
        x = x.contiguous()
        with _lost_process_is_a_resource_error():
            dist.all_reduce(x, group=self._tensor_group)
        return x

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return the x of every process in order of rank; all must have the same shape."""
        x = x.contiguous()
        gathered = [torch.empty_like(x) for _ in range(self.ranks.world_size)]
        with _lost_process_is_a_resource_error():
            dist.all_gather(gathered, x, group=self._tensor_group)
        return gathered

    def broadcast_object(self, value: T) -> T:
        """Return the value of process 0; those of the others are ignored."""
        box = [value]
        with _lost_process_is_a_resource_error():
            dist.broadcast_object_list(box, src=0, group=self._object_group)
        return box[0]

    def all_gather_object(self, value: T) -> list[T]:
        """Return the value of every process in order of rank."""
        values: list[T] = [value] * self.ranks.world_size
        with _lost_process_is_a_resource_error():
            dist.all_gather_object(values, value, group=self._object_group)
        return values

    def finish(self) -> None:
        """Leave the group once all processes have called this: leaving early would break their last steps."""
        self.all_gather_object(None)
        dist.destroy_process_group()

    def require_same(self, settings: dict[str, object]) -> None:
        """Raise `GptcliError` in every process unless all have the same settings; name those that differ."""
        gathered = self.all_gather_object(settings)
        for rank, theirs in enumerate(gathered):
            if differing := [name for name, value in theirs.items() if value != gathered[0][name]]:
                raise GptcliError(f"process {rank} differs from process 0 in its {' and '.join(differing)}")


@contextmanager
def _lost_process_is_a_resource_error() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ResourceError(
            f"another process of this run ended or cannot be reached: {_first_sentence(error)}"
        ) from error


def _first_sentence(error: Exception) -> str:
    """Return the first sentence of an error, without the position in PyTorch's source that precedes it."""
    line = re.sub(r"^\[[^\]]*\] *", "", str(error).partition("\n")[0])
    return line.partition(". ")[0][:200] or type(error).__name__
