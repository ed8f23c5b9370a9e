"""The memory that a process may still take."""

from collections.abc import Iterator
from pathlib import Path

from gptcli.errors import ResourceError
from gptcli.system import cgroup


def available_bytes() -> int:
    """Return the bytes that this process may still take: free memory, or less by a cgroup or `ulimit -v`."""
    import psutil

    headrooms = [int(psutil.virtual_memory().available), *_cgroup_headrooms()]
    if (limit := _address_space_limit()) is not None:
        headrooms.append(max(0, limit - int(psutil.Process().memory_info().vms)))
    return min(headrooms)


def require_memory(needed: int, available: int, what: str, fits: str = "a smaller preset or --dtype") -> None:
    """Raise `ResourceError` unless `needed` bytes fit into the `available` ones.

    `what` names in the message what needs them, and `fits` what would need less.
    """
    if needed > available:
        raise ResourceError(
            f"not enough memory: {what} need {needed:,} bytes ({needed / 1e9:,.1f} GB), and there are"
            f" {available:,} ({available / 1e9:,.1f} GB); take {fits}"
        )


def _cgroup_headrooms() -> Iterator[int]:
    """Yield the bytes left under the limit of this process's cgroup and of each cgroup around it.

    The kernel counts cached files as used memory, and so the weights that we map. They are taken off here,
    because the kernel drops them before it refuses memory. Source: the kernel's cgroup-v2.rst ("memory.max")
    and cgroup-v1/memory.rst ("limit_in_bytes").
    """
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        2: ("memory.max", "memory.current", ""),
    }
    for folder, version in cgroup.folders_of("memory"):
        if (headroom := _headroom(folder, *names[version])) is not None:
            yield headroom


def _headroom(folder: Path, limit_name: str, used_name: str, stat_prefix: str) -> int | None:
    try:
        limit, used = int((folder / limit_name).read_text()), int((folder / used_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max"
        return None
    cached = sum(int(stat.get(f"{stat_prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
    return max(0, limit - max(0, used - cached))


def _address_space_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
