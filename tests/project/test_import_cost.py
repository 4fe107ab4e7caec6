"""Which modules import which, and what importing the package, its entry point and its command brings in."""

import ast
import json
import pickle
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xarray_gpuzarr
from xarray_gpuzarr.backend.accessor import DataArrayAccessor, DatasetAccessor, DataTreeAccessor

ROOT = Path(__file__).parents[2]
LIGHT = {"xarray_gpuzarr", "xarray_gpuzarr.backend", "xarray_gpuzarr.backend.registration"}
ENTRY = "from importlib.metadata import entry_points; (e,) = entry_points(group='xarray.backends', name='gpuzarr')"


def run(code, *arguments):
    """Run code in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def brought(first, then, *arguments):
    """Return the modules that `then` imports where `first` was run before, without those of the standard library."""
    code = f"""
import json, sys
{first}
before = set(sys.modules)
{then}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    modules = json.loads(run(code, *arguments).splitlines()[-1])
    return {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("then", "modules"),
    [
        ("import xarray_gpuzarr", LIGHT),
        (f"{ENTRY}; e.load()", LIGHT),
        (f"{ENTRY}; e.load()().guess_can_open('a.zarr')", LIGHT),
        ("import xarray_gpuzarr; xarray_gpuzarr.OptionError", LIGHT | {"xarray_gpuzarr.errors"}),
        ("import xarray_gpuzarr; dir(xarray_gpuzarr); xarray.Dataset.gpuzarr", LIGHT),
    ],
)
def test_next_to_nothing_comes_on_top_of_xarray(then, modules):
    assert brought("import xarray", then) == modules


@pytest.mark.parametrize("statement", ["xarray.open_dataset(sys.argv[1])", "xarray.open_datatree(sys.argv[1])"])
def test_opening_other_files_brings_no_more_with_this_engine_than_without(statement, tmp_path):
    path = tmp_path / "a.nc"
    xr.Dataset({"a": ("x", np.arange(3))}).to_netcdf(path)
    without = """
import importlib.metadata
listed = importlib.metadata.entry_points
import xarray.backends.plugins
xarray.backends.plugins.entry_points = lambda **which: [e for e in listed(**which) if e.name != "gpuzarr"]
"""

    bare, full = brought(without, statement, path), brought("import xarray.backends.plugins", statement, path)

    assert full - bare == LIGHT


HEAVY = {"dask.array", "distributed", "cupy", "rmm", "nvidia.nvcomp", "rich", "fsspec", "obstore", "torch"}
"""Modules that take long to import, and are of no use to who opens and reads local files without chunks."""
OPENING = "dataset = xarray.open_dataset(sys.argv[1], engine=sys.argv[2]"


@pytest.fixture
def stored(tmp_path):
    """A store of numbers, packed numbers, text and times, with an index."""
    numbers = ("x", np.arange(6.0))
    variables = {"a": numbers, "packed": numbers, "text": ("x", list("abcdef")), "scalar": 3}
    coords = {"x": np.arange(6), "time": ("x", np.arange(6).astype("M8[D]").astype("M8[ns]"))}
    packing = {"packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    xr.Dataset(variables, coords=coords).to_zarr(tmp_path / "a.zarr", zarr_format=2, encoding=packing)
    return tmp_path / "a.zarr"


def heavy_modules(then, path, engine="gpuzarr"):
    """Return the heavy modules that a statement imports, given a store and an engine."""
    return HEAVY & brought("import sys, xarray; xarray.backends.list_engines()", then, path, engine)


def test_an_opening_without_chunks_brings_nothing_heavy(stored):
    assert not heavy_modules(f"{OPENING})", stored)


@pytest.mark.parametrize("how", ["load()", "isel(x=slice(1, 3)).load()", "a.to_numpy()"])
def test_a_read_without_chunks_brings_nothing_heavy_that_it_does_not_bring_without_this_engine(how, stored):
    reading = f"{OPENING}); dataset.{how}"

    assert heavy_modules(reading, stored) <= heavy_modules(reading, stored, "zarr")


def test_dask_comes_with_chunks(stored):
    assert "dask.array" in heavy_modules(f"{OPENING}, chunks={{}})", stored)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["demo", "--help"], ["doctor", "--help"]])
def test_help_brings_nothing(arguments):
    command = f"""
import contextlib, io
from xarray_gpuzarr.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({arguments})
"""

    modules = {f"xarray_gpuzarr.{name}" for name in ("cli", "errors")}
    assert brought("", command) == {"xarray_gpuzarr"} | modules


@pytest.mark.parametrize(
    "imports",
    [
        "import xarray, xarray_gpuzarr",
        "import xarray_gpuzarr, xarray",
        "import xarray_gpuzarr; from xarray.core.dataset import Dataset; import xarray",
        "import xarray_gpuzarr, importlib.util; importlib.util.find_spec('xarray'); import xarray",
        f"import xarray; {ENTRY}; e.load()",
    ],
    ids=["after xarray", "before xarray", "before a part of it", "looked for before", "by opening something"],
)
def test_the_accessor_is_there(imports):
    what = "xarray.Dataset().gpuzarr, xarray.DataArray(0).gpuzarr, xarray.DataTree().gpuzarr"

    printed = run(
        f"import warnings; warnings.simplefilter('error'); {imports}; print(*map(lambda a: type(a).__name__, ({what})))"
    )

    assert printed.split() == ["DatasetAccessor", "DataArrayAccessor", "DataTreeAccessor"]


def test_xarray_that_fails_to_import_has_accessors_once_it_does_not():
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

    assert run(code).split("\n") == ["True True", "[]", ""]


def test_zarr_python_alone_brings_no_xarray():
    used = (
        "import xarray_gpuzarr, zarr; xarray_gpuzarr.zarr_pipeline(); zarr.create_array({}, shape=(2,), dtype='i4')[:]"
    )

    assert not {name for name in brought("", used) if name.partition(".")[0] == "xarray"}


@pytest.mark.parametrize(
    ("of", "body"), [(xr.Dataset, DatasetAccessor), (xr.DataArray, DataArrayAccessor), (xr.DataTree, DataTreeAccessor)]
)
def test_the_accessor_of_a_class_shows_what_its_accessor_has(of, body):
    assert of.gpuzarr.explain is body.explain
    assert not hasattr(of.gpuzarr, "nothing")


def test_exports_are_what_their_modules_have():
    tree = ast.parse(Path(xarray_gpuzarr.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    homes = {alias.name: node.module for node in typed.body for alias in node.names}

    assert sorted(homes) == sorted(xarray_gpuzarr.__all__)
    for name, module in homes.items():
        assert getattr(xarray_gpuzarr, name) is getattr(import_module(module), name)


def test_names_are_listed_starred_and_missed_as_ever():
    names = {}
    exec("from xarray_gpuzarr import *", names)

    assert set(xarray_gpuzarr.__all__) <= set(names)
    assert set(xarray_gpuzarr.__all__) <= set(dir(xarray_gpuzarr))
    with pytest.raises(AttributeError, match="module 'xarray_gpuzarr' has no attribute 'nothing'"):
        _ = xarray_gpuzarr.nothing
    with pytest.raises(ImportError, match="nothing"):
        exec("from xarray_gpuzarr import nothing", names)


def test_modules_that_the_documentation_names_are_there():
    named = "(g.cluster.Stats, g.errors.OptionError, g.accessor.Row, g.backend.GpuZarrBackendEntrypoint)"

    assert run(f"import xarray_gpuzarr as g; print(len({named}))") == "4\n"


def test_what_was_pickled_is_read_by_a_process_that_imported_nothing(tmp_path):
    xr.Dataset({"a": (("y", "x"), np.arange(12.0).reshape(3, 4))}).to_zarr(tmp_path / "s.zarr")
    opened = xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", device="host", chunks={})
    (tmp_path / "pickled").write_bytes(pickle.dumps(opened))

    code = "import pickle, sys; d = pickle.load(open(sys.argv[1], 'rb')); print(d.gpuzarr.device, d.a.values.sum())"
    assert run(code, tmp_path / "pickled").split() == ["host", "66.0"]


EVERYTHING = ", ".join(f"xarray_gpuzarr.{n}" for n in ("backend.datasets", "backend.accessor", "cluster", "training"))
"""What opening a store, looking at it and training import."""


def test_floors_import_only_from_below():
    lint = Path(sys.executable).with_name("lint-imports")

    result = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stdout


def test_no_module_hides_from_the_floors_whom_it_imports():
    hidden = re.compile(r"import_module\(f?[\"']xarray_gpuzarr")
    modules = (ROOT / "xarray_gpuzarr").rglob("*.py")

    # The package itself looks its names up when they are first used, and nobody imports it.
    assert [path for path in modules if hidden.search(path.read_text())] == [ROOT / "xarray_gpuzarr" / "__init__.py"]


@cache
def imported_by(statement):
    """Return the top-level packages that a fresh Python has imported after `statement`."""
    return {name.partition(".")[0] for name in run(f"import sys; {statement}; print(*sys.modules)").split()}


@pytest.mark.parametrize(
    "statement", [f"import {EVERYTHING}", "import xarray as xr; xr.backends.list_engines()['gpuzarr']"]
)
def test_importing_brings_in_no_gpu_plot_or_cluster_package(statement):
    imported = imported_by(statement)

    assert "xarray_gpuzarr" in imported
    brought_by_others = imported_by("import xarray, zarr, dask.array")  # zarr imports CuPy where it is installed
    assert not (imported - brought_by_others) & {"cupy", "rmm", "nvidia", "matplotlib", "distributed", "numba", "torch"}


def test_importing_warns_of_nothing_starts_no_thread_and_leaves_rich_to_those_who_print():
    what = "threading.active_count(), 'rich.console' in sys.modules"
    code = f"import {EVERYTHING}, sys, threading; print({what})"

    command = [sys.executable, "-W", "error::DeprecationWarning:xarray_gpuzarr", "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert (result.returncode, result.stdout, result.stderr) == (0, "1 False\n", "")
