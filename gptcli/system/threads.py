"""The default number of threads: the cores that this process may keep busy."""

import math
import os
from pathlib import Path

from gptcli.system.memory import CGROUPS


def default_threads(cgroup: Path = CGROUPS) -> int:
    """Return the number of cores within the affinity mask and the quota of the control group, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return how many cores' time the control group (version 2, else 1) allows, if it limits it."""
    try:
        if (limit := cgroup / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = (
                (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no control group, or "max"
        return None
