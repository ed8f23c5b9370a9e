"""The environment of torchrun: it is read in one place and passed on as a value."""

import ast
from pathlib import Path

import pytest

from gptcli.parallel import join
from gptcli.system.torchrun import Torchrun, is_follower, read_torchrun

PACKAGE = Path(__file__).parents[2] / "gptcli"
ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "5",
}


@pytest.fixture
def environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.usefixtures("environment")
def test_every_value_is_read():
    assert read_torchrun() == Torchrun(3, 4, 1, 2, "node-0", 29500, 5)
    assert is_follower()


@pytest.mark.parametrize(
    "name", ["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
)
def test_a_process_without_torchruns_variables_is_alone(environment, name):
    environment.delenv(name)
    assert read_torchrun() is None
    assert not is_follower()


def test_without_an_address_the_first_rank_reports_the_error(environment):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        environment.delenv(name)
    torchrun = read_torchrun()
    assert torchrun == Torchrun(3, 4, 1, 2, None, None, 0)
    assert not join.is_first_to_fail(torchrun)
    assert join.is_first_to_fail(Torchrun(0, 4, 0, 2))


@pytest.mark.usefixtures("environment")
def test_the_store_uses_the_address_of_the_value_not_of_the_environment(monkeypatch):
    asked = []

    class Store:
        def __init__(self, host, port, timeout):  # noqa: ARG002 - TCPStore's
            self.address = (host, port)

        def add(self, key, amount):
            asked.append((*self.address, key, amount))
            return len(asked)

    monkeypatch.setattr(join, "TCPStore", Store)
    torchrun = Torchrun(1, 2, 1, 2, "elsewhere", 1234, 7)
    assert [join.is_first_to_fail(torchrun) for _ in range(2)] == [True, False]
    assert asked == [("elsewhere", 1234, "gptcli/failed/7", 1)] * 2


def test_below_the_command_line_nothing_else_reads_the_environment():
    readers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    }
    readers -= {"engine/native/build.py"}  # it runs when the package is built
    readers -= {"plots/figure.py"}  # it hides a variable from matplotlib
    assert {path for path in readers if not path.startswith("cli/")} == {"system/torchrun.py"}
