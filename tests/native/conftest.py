"""These tests are about the compiled loops."""

from collections.abc import Iterator

import pytest
from helpers.loops import require_loops

from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.native.library import Loops


@pytest.fixture
def compiled() -> Loops:
    """The compiled loops; with ``XARRAY_GPUZARR_SANITIZE=1``, built with sanitizers."""
    return require_loops()


@pytest.fixture
def known_indexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Indexes are kept at once, and no read is planned because one before was left."""
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    index_cache.cache.clear()
    yield
    index_cache.cache.clear()
