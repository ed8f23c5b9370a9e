"""The default number of threads, with quotas of control groups and without."""

import os
from pathlib import Path

import pytest

from gptcli.system import cgroup
from gptcli.system.threads import default_threads

V1 = "4:memory:/else\n5:cpu,cpuacct:/outer/inner\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # as in a container
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/outer/inner\n", {"outer/inner/cpu.max": "300000 100000\n", "outer/cpu.max": "max 100000"}, 3),
        (
            "0::/outer/inner\n",
            {"outer/inner/cpu.max": "300000 100000\n", "outer/cpu.max": "200000 100000"},
            2,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        (
            V1,
            {"cpu/outer/inner/cpu.cfs_quota_us": "100001\n", "cpu/outer/inner/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        (V1, {"cpu.max": "100000 100000\n"}, 64),  # of no group that the process is in
        ("0::/\n", {}, 64),
        ("", {}, 64),
    ],
)
def test_default_threads_respect_every_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "groups")
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    assert default_threads() == expected
