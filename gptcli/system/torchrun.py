"""The environment that `torchrun` gives each of its processes, read in one place."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Torchrun:
    """The place of this process in a run of `torchrun`, and the address of the store that the run shares.

    Names and meanings are those of torchrun's environment variables; a `local_` value counts the processes of
    this machine alone. `master_port` is None where the variable is missing or not a number.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str | None = None
    master_port: int | None = None
    restart_count: int = 0


def read_torchrun() -> Torchrun | None:
    """Return this process's place in a run of `torchrun`, or None where torchrun did not start it.

    RANK and WORLD_SIZE alone prove nothing: clusters set them for every container.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    rank, world_size = _read_int("RANK"), _read_int("WORLD_SIZE")
    local_rank, local_world_size = _read_int("LOCAL_RANK"), _read_int("LOCAL_WORLD_SIZE")
    if rank is None or world_size is None or local_rank is None or local_world_size is None:
        return None
    return Torchrun(
        rank,
        world_size,
        local_rank,
        local_world_size,
        master_addr=os.environ.get("MASTER_ADDR"),
        master_port=_read_int("MASTER_PORT"),
        restart_count=_read_int("TORCHELASTIC_RESTART_COUNT") or 0,
    )


def is_follower() -> bool:
    """Return whether another process of this run, the one of rank 0, prints the answer."""
    return (torchrun := read_torchrun()) is not None and torchrun.rank > 0


def _read_int(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
