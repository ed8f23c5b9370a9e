"""The control groups of this process, whose limits hold for it: its own and each group around it."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders_of(controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folder of each group with this controller (`memory`, `cpu`), and its version, 1 or 2.

    From the process's own outward; a container sees its own group at the root. Source: the kernel's
    cgroup-v2.rst and cgroup-v1/cgroups.rst.
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, version = ROOT, 2
        elif controller in controllers.split(","):
            root, version = ROOT / controller, 1
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield folder, version
