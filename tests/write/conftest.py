"""What all tests of writing need."""

import pytest
from helpers.loops import require_loops


@pytest.fixture(autouse=True)
def compiled():
    """The compiled loops, without which zarr-python writes."""
    return require_loops()
