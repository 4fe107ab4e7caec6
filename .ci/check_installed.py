"""Compare the installed package with its sources, and read a store with it; run outside the checkout."""

import sys
from importlib.metadata import distribution
from pathlib import Path

import xarray_gpuzarr

sources, installed = Path(sys.argv[1]), Path(xarray_gpuzarr.__file__).parent
assert installed != sources, "the checkout was imported, not the package"


def files(folder):
    """List what must be shipped: everything but what Python makes."""
    return {
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


assert files(installed) == files(sources), files(installed) ^ files(sources)
assert {path.suffix for path in files(installed)} == {".py", ".cu", ".cuh", ".json", ".typed"}

package = distribution("xarray-gpuzarr")
assert package.metadata["License-Expression"] == "Apache-2.0"
assert any(path.name == "LICENSE" for path in package.files)
assert {entry.name for entry in package.entry_points} == {"gpuzarr"}
