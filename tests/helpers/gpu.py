"""Tests marked `gpu` are skipped where there is no GPU; ``XARRAY_GPUZARR_REQUIRE_GPU=1`` makes that a failure."""

import functools
import importlib
import os

import pytest


@functools.cache
def why_no_gpu() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
        importlib.import_module("rmm")
        n_devices = runtime.getDeviceCount()
    except ImportError as error:
        return str(error)
    except RuntimeError as error:  # CuPy's own class is not importable without CuPy
        return str(error)
    return None if n_devices else "CUDA sees no GPU"


def skip_or_fail_without_gpu() -> None:
    """End the test here if it cannot run."""
    if (why := why_no_gpu()) is not None:
        missing = pytest.fail if _is_required() else pytest.skip
        missing(f"no GPU: {why}")


def why_required_gpu_is_missing() -> str | None:
    """Return why no GPU can be used where one is required; None if one can, or none is required."""
    return why_no_gpu() if _is_required() else None


def _is_required() -> bool:
    return os.environ.get("XARRAY_GPUZARR_REQUIRE_GPU") == "1"
