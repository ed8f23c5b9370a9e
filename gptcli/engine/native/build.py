"""Hatchling's hook that compiles the kernels into a wheel, or into the source folder for `pip install -e`.

It takes the system's C compiler, else the one in the `ziglang` wheel, which is required only then. If neither
works, the wheel is pure Python, or the build fails if GPTCLI_REQUIRE_KERNELS=1. GPTCLI_KERNELS_TARGET names
another machine to compile for, by zig.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = Path("gptcli", "engine", "native")
LIBRARY = "kernels.so"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-ffp-contract=fast",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-g0",
]
V3 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe"]
V4 = [*V3, *(f"-mavx512{part}" for part in ("f", "bw", "cd", "dq", "vl"))]
VARIANTS: dict[str, dict[str, list[str]]] = {
    "x86_64": {"x86_64_v2": ["-msse4.2", "-mpopcnt"], "x86_64_v3": V3, "x86_64_v4": V4},
    "aarch64": {"baseline": []},
}
# Near ties are decided in float64 by the next smaller variant: it is seldom, and costs little more time.
WITHOUT_DOUBLE = ("x86_64_v4",)
# What zig compiles for: its target, with the oldest glibc or macOS that will do, and the wheel's tag.
TARGETS = {
    "linux-x86_64": ("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    "linux-aarch64": ("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
    "macos-arm64": ("aarch64-macos.11.0", "macosx_11_0_arm64"),
}


def compile_kernels(
    compiler: list[str], machine: str, source: Path, output: Path, extra: Sequence[str] = ()
) -> None:
    """Compile the C files in `source` for a machine into a shared library, all at the same time.

    Raises OSError or subprocess.CalledProcessError.
    """
    units = [
        (f"{name}.o", "variant.c", [f"-DVARIANT={name}", *flags]) for name, flags in VARIANTS[machine].items()
    ]
    units += [
        (f"{name}_double.o", "variant.c", [f"-DVARIANT={name}_double", "-DDOUBLE", *flags])
        for name, flags in VARIANTS[machine].items()
        if name not in WITHOUT_DOUBLE
    ]
    units += [(f"{name}.o", f"{name}.c", []) for name in ("api", "bus_error", "pool")]
    with tempfile.TemporaryDirectory() as folder:
        objects = [str(Path(folder, name)) for name, _, _ in units]
        runs = [
            subprocess.Popen([*compiler, *FLAGS, *flags, *extra, "-c", str(source / file), "-o", target])
            for (_, file, flags), target in zip(units, objects, strict=True)
        ]
        if sum(abs(run.wait()) for run in runs):
            raise subprocess.CalledProcessError(1, compiler)
        subprocess.run(
            [*compiler, *extra, "-shared", "-pthread", *objects, "-lm", "-o", str(output)], check=True
        )


def system_compiler() -> list[str] | None:
    """Return the system's C compiler if it can make a program."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if (path := shutil.which(name)) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            output = str(Path(folder, "probe"))
            source = b"#include <pthread.h>\n#include <math.h>\nint main(void) { return 0; }\n"
            command = [path, "-x", "c", "-", "-pthread", "-o", output]
            if subprocess.run(command, input=source, capture_output=True, check=False).returncode == 0:
                return [path]
    return None


def this_machine() -> str:
    """Return the name of this machine's processor, as in VARIANTS."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


class NativeBuildHook(BuildHookInterface[Any]):
    """Puts the compiled kernels into the wheel and tags it py3-none-PLATFORM."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the requirement of ziglang, if the system has no compiler that works."""
        wanted = self.target_name == "wheel" and (self._target or system_compiler() is None)
        return ["ziglang>=0.13"] if wanted else []

    def clean(self, _versions: list[str]) -> None:
        """Remove the library from the source folder."""
        Path(self.root, FOLDER, LIBRARY).unlink(missing_ok=True)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what the wheel holds; one in the tree is not taken, `exclude` sees to that."""
        if self.target_name != "wheel":
            return
        self._scratch = tempfile.TemporaryDirectory()  # removed with the hook, after the wheel is written
        output = Path(self.root, FOLDER) if version == "editable" else Path(self._scratch.name)
        output /= LIBRARY
        output.unlink(missing_ok=True)
        try:
            tag = self._compile(output)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            if os.environ.get("GPTCLI_REQUIRE_KERNELS") == "1":
                raise
            self.app.display_warning(f"the kernels were not compiled, PyTorch will decode: {error!r}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        if version != "editable":
            build_data["force_include"][str(output)] = str(FOLDER / LIBRARY)

    @property
    def _target(self) -> str | None:
        return os.environ.get("GPTCLI_KERNELS_TARGET")

    def _compile(self, output: Path) -> str:
        """Compile by the first compiler there is and return the wheel's platform tag."""
        source, machine, tag = Path(self.root, FOLDER, "csrc"), this_machine(), next(platform_tags())
        compiler = None if self._target else system_compiler()
        if compiler is None:
            system = {"Linux": "linux", "Darwin": "macos"}[platform.system()]
            target, tag = TARGETS[self._target or f"{system}-{platform.machine()}"]
            machine = target.split("-")[0]
            compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target]
        compile_kernels(compiler, machine, source, output)
        return tag
