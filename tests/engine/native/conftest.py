"""Run a test with every variant of the kernels that this processor can run."""

from collections.abc import Iterator

import pytest

from gptcli.engine.native import library


@pytest.fixture(params=["x86_64_v2", "x86_64_v3", "x86_64_v4", "baseline"])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force a variant; skip those of other processors."""
    if request.param not in library.usable_variants():
        pytest.skip(f"this processor does not run {request.param}")
    library.force_variant(request.param)
    yield request.param
    library.force_variant(library.usable_variants()[-1])
