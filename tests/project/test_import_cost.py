"""Modules that importing the package, its entry point and its command brings in, and names that the package exports."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xarray_gpuzarr
from xarray_gpuzarr.backend.accessor import DataArrayAccessor, DatasetAccessor, DataTreeAccessor

ROOT = Path(__file__).parents[2]
LIGHT = {"xarray_gpuzarr", "xarray_gpuzarr.backend", "xarray_gpuzarr.backend.registration"}
HEAVY = {"cupy", "dask.array", "distributed", "matplotlib", "nvidia.nvcomp", "obstore", "rich.console", "rmm", "torch"}
"""Modules that take long to import, and that opening and reading local files without chunks does not need."""
ENTRY = "from importlib.metadata import entry_points; (e,) = entry_points(group='xarray.backends', name='gpuzarr')"


def run(code, *arguments):
    """Return what a fresh interpreter prints that runs `code` without a warning."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def imported(before, statement, *arguments):
    """Return the modules outside the standard library that `statement` imports after the statement `before`."""
    code = f"""
import json, sys
{before}
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    modules = json.loads(run(code, *arguments).splitlines()[-1])
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        ("import xarray_gpuzarr", LIGHT),
        (f"{ENTRY}; e.load()().guess_can_open('a.nc')", LIGHT),
        ("import xarray_gpuzarr; xarray_gpuzarr.OptionError", LIGHT | {"xarray_gpuzarr.errors"}),
        ("import xarray_gpuzarr; dir(xarray_gpuzarr); xarray.Dataset.gpuzarr", LIGHT),
    ],
)
def test_importing_the_package_adds_next_to_nothing_to_xarray(statement, modules):
    assert imported("import xarray", statement) == modules


def test_reading_without_chunks_brings_nothing_heavy(tmp_path):
    numbers, days = np.arange(6.0), np.arange(6).astype("M8[D]").astype("M8[ns]")
    dataset = xr.Dataset({"a": ("x", numbers), "text": ("x", list("abcdef"))}, {"x": numbers, "time": ("x", days)})
    packing = {"a": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    dataset.to_zarr(tmp_path / "a.zarr", zarr_format=2, encoding=packing)
    # An engine given by name makes xarray import all engines.
    opened = "xarray.open_dataset(sys.argv[1], engine=xarray_gpuzarr.backend.GpuZarrBackendEntrypoint)"

    reading = f"dataset = {opened}; dataset.isel(x=[1]).load(); dataset.load()"
    modules = imported("import xarray, xarray_gpuzarr, zarr", reading, tmp_path / "a.zarr")

    assert "xarray_gpuzarr.read" in modules
    assert HEAVY & modules == set()


def test_help_imports_only_the_command_line_and_errors():
    statement = """
import contextlib, io
from xarray_gpuzarr.cli import main
for arguments in (["--help"], ["--version"], ["demo", "--help"], ["doctor", "--help"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(arguments)
"""

    assert imported("", statement) == {"xarray_gpuzarr", "xarray_gpuzarr.cli", "xarray_gpuzarr.errors"}


def test_importing_every_part_brings_nothing_heavy_and_starts_no_thread():
    parts = "from xarray_gpuzarr import cluster, training; from xarray_gpuzarr.backend import accessor, datasets"
    dependencies = "import threading, xarray, zarr, dask.array"  # zarr imports CuPy where it is installed

    assert HEAVY & imported(dependencies, f"{parts}; assert threading.active_count() == 1") == set()


def test_no_module_hides_an_import_from_the_contracts_of_layers():
    hidden = re.compile(r"import_module\(f?[\"']xarray_gpuzarr")
    modules = (ROOT / "xarray_gpuzarr").rglob("*.py")

    # The package itself imports its public names when they are first used, and no module imports the package.
    assert [path for path in modules if hidden.search(path.read_text())] == [ROOT / "xarray_gpuzarr" / "__init__.py"]


@pytest.mark.parametrize(
    "imports",
    [
        "import xarray, xarray_gpuzarr",
        "import xarray_gpuzarr, xarray",
        "import xarray_gpuzarr, importlib.util; importlib.util.find_spec('xarray'); import xarray",
    ],
    ids=["after xarray", "before xarray", "looked for before"],
)
def test_the_accessor_is_there(imports):
    names = "type(xarray.Dataset().gpuzarr), type(xarray.DataArray(0).gpuzarr), type(xarray.DataTree().gpuzarr)"
    code = f"import warnings; warnings.simplefilter('error'); {imports}; print(*[a.__name__ for a in ({names})])"

    assert run(code).split() == ["DatasetAccessor", "DataArrayAccessor", "DataTreeAccessor"]


def test_the_accessor_is_there_when_a_second_import_of_xarray_succeeds():
    code = """
import sys, xarray_gpuzarr
sys.modules["pandas"] = None
try:
    import xarray
except ImportError:
    del sys.modules["pandas"]
import xarray
print(hasattr(xarray.Dataset, "gpuzarr"), xarray.__spec__.loader.get_source("xarray") is not None)
print([finder for finder in sys.meta_path if type(finder).__module__ == "xarray_gpuzarr"])
"""

    assert run(code) == "True True\n[]\n"


@pytest.mark.parametrize(
    ("extended", "accessor"),
    [(xr.Dataset, DatasetAccessor), (xr.DataArray, DataArrayAccessor), (xr.DataTree, DataTreeAccessor)],
)
def test_a_class_shows_the_attributes_of_its_accessor(extended, accessor):
    assert extended.gpuzarr.explain is accessor.explain
    assert not hasattr(extended.gpuzarr, "nothing")


def test_exports_are_the_names_that_type_checkers_see():
    tree = ast.parse(Path(xarray_gpuzarr.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    modules = {alias.name: node.module for node in typed.body for alias in node.names}

    assert sorted(modules) == sorted(xarray_gpuzarr.__all__)
    assert set(modules) <= set(dir(xarray_gpuzarr))
    for name, module in modules.items():
        assert getattr(xarray_gpuzarr, name) is getattr(import_module(module), name)


def test_unknown_names_raise_as_those_of_any_module():
    with pytest.raises(AttributeError, match="module 'xarray_gpuzarr' has no attribute 'nothing'"):
        _ = xarray_gpuzarr.nothing


def test_modules_that_the_documentation_names_need_no_import():
    names = "(g.cluster.Stats, g.errors.OptionError, g.accessor.Row, g.backend.GpuZarrBackendEntrypoint)"

    assert run(f"import xarray_gpuzarr as g; print(len({names}))") == "4\n"
