"""These tests are about the compiled loops."""

import pytest
from helpers.loops import require_loops

from xarray_gpuzarr.native import Loops


@pytest.fixture
def compiled() -> Loops:
    """The compiled loops; with ``XARRAY_GPUZARR_SANITIZE=1``, built with sanitizers."""
    return require_loops()
