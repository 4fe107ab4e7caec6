"""The layers of the package: who may import whom, and what importing the package brings in."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVERYTHING = "xarray_gpuzarr.backend.opening, xarray_gpuzarr.backend.accessor, xarray_gpuzarr.cluster"
"""What opening a store and looking at it imports."""


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_floors_import_only_from_below():
    lint = Path(sys.executable).with_name("lint-imports")

    result = run(lint, "--no-cache")

    assert result.returncode == 0, result.stdout


def test_no_module_hides_from_the_floors_whom_it_imports():
    hidden = re.compile(r"import_module\(f?[\"']xarray_gpuzarr")
    modules = (ROOT / "xarray_gpuzarr").rglob("*.py")

    # The package itself looks its names up when they are first used, and nobody imports it.
    assert [path for path in modules if hidden.search(path.read_text())] == [ROOT / "xarray_gpuzarr" / "__init__.py"]


@cache
def imported_by(statement):
    """Return the top-level packages that a fresh Python has imported after `statement`."""
    code = f"import sys; {statement}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(run(sys.executable, "-c", code).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        f"import {EVERYTHING}",
        "import xarray as xr; xr.backends.list_engines()['gpuzarr']",
    ],
)
def test_importing_brings_in_no_gpu_plot_or_cluster_package(statement):
    imported = imported_by(statement)

    assert "xarray_gpuzarr" in imported
    brought_by_others = imported_by("import xarray, zarr, dask.array")  # zarr imports CuPy where it is installed
    assert not (imported - brought_by_others) & {"cupy", "rmm", "nvidia", "matplotlib", "distributed", "numba"}


def test_importing_warns_of_nothing_starts_no_thread_and_leaves_rich_to_those_who_print():
    what = "threading.active_count(), 'rich.console' in sys.modules"
    code = f"import {EVERYTHING}, sys, threading; print({what})"

    result = run(sys.executable, "-W", "error::DeprecationWarning:xarray_gpuzarr", "-c", code)

    assert (result.returncode, result.stdout, result.stderr) == (0, "1 False\n", "")
