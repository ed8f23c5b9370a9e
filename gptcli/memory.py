"""How much memory there is, and a refusal before anything is allocated that will not fit."""

from pathlib import Path

from gptcli.errors import ResourceError

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


def available_bytes() -> int:
    """Bytes that this process may still take: free memory, or less under a cgroup or `ulimit -v`."""
    import psutil

    rooms = [int(psutil.virtual_memory().available)]
    for limit_path, used_path in zip(_CGROUP_LIMITS, _CGROUP_USED, strict=True):
        limit, used = _read_number(limit_path), _read_number(used_path)
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used))
    if (limit := _address_space_limit()) is not None:
        rooms.append(max(0, limit - int(psutil.Process().memory_info().vms)))
    return min(rooms)


def require(needed: int, available: int, what: str) -> None:
    """Raise `ResourceError` unless `needed` bytes fit; `what` needs them and stands in the message."""
    if needed > available:
        raise ResourceError(
            f"not enough memory: {what} need {needed:,} bytes ({needed / 1e9:,.1f} GB), and there are"
            f" {available:,} ({available / 1e9:,.1f} GB); take a smaller preset or --dtype"
        )


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None


def _address_space_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
