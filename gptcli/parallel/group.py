"""The processes of a run, and what they tell each other: by gloo between CPUs, by NCCL between GPUs."""

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

# How long the others may take to start, and to come to the same sum; a process that ends is noticed at once.
JOIN, STEP = timedelta(seconds=60), timedelta(minutes=5)
# What the first process has to tell may have to wait for its standard input.
TELL = timedelta(days=7)
T = TypeVar("T")


class Group:
    """This process among those that share a model. Every method is called by all of them, in the same order.

    Raises `ResourceError` where another has ended or cannot be reached.
    """

    def __init__(self, torchrun: Torchrun, device: torch.device) -> None:
        """Meet the others; `device` is where this process computes."""
        self.ranks, self.device = Rank(torchrun.rank, torchrun.world_size), device
        self.n_on_this_machine = torchrun.local_world_size
        self.backend = "gloo" if device.type == "cpu" else "nccl"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group("gloo", timeout=JOIN)
            self._sums = dist.new_group(backend=self.backend, timeout=STEP)
            self._words = dist.new_group(backend="gloo", timeout=TELL)
        except (RuntimeError, ValueError) as error:
            raise ResourceError(
                f"the {torchrun.world_size} processes of this run did not meet: {_line(error)}"
            ) from error

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.ranks.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every process's x, in x; the same to the last bit for all of them."""
        x = x.contiguous()
        with _meeting():
            dist.all_reduce(x, group=self._sums)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """Every process's x, all of one shape, in the order of their numbers."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.ranks.world_size)]
        with _meeting():
            dist.all_gather(parts, x, group=self._sums)
        return parts

    def from_first(self, value: T) -> T:
        """What the first process has; the others' `value` counts for nothing."""
        box = [value]
        with _meeting():
            dist.broadcast_object_list(box, src=0, group=self._words)
        return box[0]

    def of_all(self, value: T) -> list[T]:
        """Every process's value, in the order of their numbers."""
        values: list[T] = [value] * self.ranks.world_size
        with _meeting():
            dist.all_gather_object(values, value, group=self._words)
        return values

    def finish(self) -> None:
        """Part, once all have come here: whoever left earlier would end the others' last steps."""
        self.of_all(None)
        dist.destroy_process_group()

    def require_same(self, facts: dict[str, object]) -> None:
        """Raise `GptcliError` in every process unless all have the same facts; it names who differs."""
        everyones = self.of_all(facts)
        for rank, theirs in enumerate(everyones):
            if differing := [name for name, value in theirs.items() if value != everyones[0][name]]:
                raise GptcliError(f"process {rank} has not the {' and the '.join(differing)} of process 0")


@contextmanager
def _meeting() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ResourceError(
            f"another process of this run ended or cannot be reached: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    """The first sentence of an error, without the place in PyTorch's source that stands before it."""
    line = re.sub(r"^\[[^\]]*\] *", "", str(error).partition("\n")[0])
    return line.partition(". ")[0][:200] or type(error).__name__
