"""The kernels' own tests once more, on a build with address and undefined-behavior sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gptcli.engine.native import build, library

FOLDER = Path(__file__).parent
# Null pointers and sizes are what the address sanitizer sees too; the three left out take five times as long.
FLAGS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize=null,object-size,pointer-overflow"]
FLAGS += ["-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
TESTS = ["test_products.py", "test_elementwise.py", "test_attention.py"]
RUN = """
import sys
from pathlib import Path
from gptcli.engine.native import library
library.LIBRARY = Path(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-oaddopts=", sys.argv[2]]))
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile with the sanitizers by gcc; skip where there is none."""
    if (gcc := shutil.which("gcc")) is None:
        pytest.skip("no gcc")
    output = tmp_path_factory.mktemp("sanitized") / "kernels.so"
    source = Path(library.__file__).parent / "csrc"
    build.compile_kernels([gcc], build.this_machine(), source, output, FLAGS)
    return output


def run(sanitized: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [sys.executable, "-c", RUN, str(sanitized), *arguments],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_kernels_touch_nothing_that_is_not_theirs(sanitized: Path, name: str) -> None:
    done = run(sanitized, str(FOLDER / name))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
