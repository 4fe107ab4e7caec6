"""Fixtures and settings of the whole suite."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from zarr.storage import LocalStore, MemoryStore

pytest.register_assert_rewrite("helpers")

settings.register_profile(
    "ci",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search",
    max_examples=2000,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def memory() -> MemoryStore:
    """An empty store in memory: chunks come through the store's own byte-range reads."""
    return MemoryStore()


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    """An empty store of files: chunks come through positional reads."""
    return LocalStore(tmp_path / "store.zarr")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest) -> MemoryStore | LocalStore:
    """Both kinds of source."""
    return request.getfixturevalue(request.param)
