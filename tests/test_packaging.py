"""The wheel: in a fresh environment it finds its presets and its vocabulary from any folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from gptcli.config.presets import preset_names

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, so that a build leaves nothing in the checkout
    ignore = shutil.ignore_patterns(".*", "__pycache__", "dist")
    shutil.copytree(ROOT, source, ignore=ignore)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_what_is_needed_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in preset_names():
        assert f"gptcli/configs/{name}.yaml" in names
    assert "gptcli/py.typed" in names  # its types are there for those who import it
    for name in ("gpt2_ranks.zlib", "README.md", "LICENSE"):
        assert f"gptcli/vocab/{name}" in names
    assert not [name for name in names if "test" in name]
    assert "gptcli/configs/stories.safetensors" in names
    assert wheel.stat().st_size < 13_000_000


@pytest.mark.slow
def test_a_fresh_environment_runs_it_from_any_folder(wheel, tmp_path):
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    # Third-party packages come from this environment, so that nothing is downloaded.
    borrowed = Path(
        subprocess.check_output(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], text=True
        ).strip()
    )
    (borrowed / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [python, "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HOME": str(empty)}

    def run(*command: str) -> str:
        return subprocess.check_output(
            [home / "bin" / "gptcli", *command], cwd=empty, env=env, text=True, timeout=120
        )

    where = [python, "-c", "import gptcli; print(gptcli.__file__)"]
    assert str(home) in subprocess.check_output(where, cwd=empty, env=env, text=True)
    assert "1,557,611,200" in run("params", "--preset", "gpt2-xl")
    assert "stories" not in run("generate", "Once upon a time", "-n", "5")
    text = run("generate", "Hello, I am", "-p", "gpt-124m", "--set", "n_layers=1", "-n", "3")
    assert text.startswith("Hello, I am")
