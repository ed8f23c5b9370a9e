"""Whether this process is one of several that `torchrun` has started; told by the environment alone."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Torchrun:
    """What `torchrun` says: this process's number of how many, in all and on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def torchrun() -> Torchrun | None:
    """What `torchrun` says, None where there is none.

    RANK and WORLD_SIZE alone do not tell: clusters set them for every container.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdecimal() for value in values):
        return None
    return Torchrun(*map(int, values))


def is_follower() -> bool:
    """Whether another process, the first, speaks for all."""
    return (told := torchrun()) is not None and told.rank > 0
