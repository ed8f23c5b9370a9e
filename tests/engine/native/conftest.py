"""Run a test with every variant of the kernels that is compiled for this machine."""

from collections.abc import Iterator

import pytest

from gptcli.engine.native import library
from gptcli.engine.native.build import VARIANTS, this_machine


@pytest.fixture(params=VARIANTS[this_machine()])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force a variant; skip those that an older processor cannot run."""
    if request.param not in library.usable_variants():
        pytest.skip(f"this processor does not run {request.param}")
    library.force_variant(request.param)
    yield request.param
    library.force_variant(library.usable_variants()[-1])
