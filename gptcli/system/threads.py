"""The default number of threads: the cores that this process may keep busy."""

import math
import os
from pathlib import Path

from gptcli.system import cgroup


def default_threads() -> int:
    """Return the number of cores within the affinity mask and all quotas of control groups, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = (_quota(folder, version) for folder, version in cgroup.folders_of("cpu"))
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(folder: Path, version: int) -> float | None:
    """Return how many cores' time a group allows; None if it does not limit it."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such group, or "max"
        return None
