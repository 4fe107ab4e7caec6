"""Compare the installed package with its sources, and see whether it has compiled loops; run outside the checkout."""

import sys
from importlib.metadata import distribution
from pathlib import Path

import xarray_gpuzarr
from xarray_gpuzarr.native.library import loops, why_absent

sources, installed, kind = Path(sys.argv[1]), Path(xarray_gpuzarr.__file__).parent, sys.argv[2]
assert installed != sources, "the checkout was imported, not the package"


def files(folder):
    """List what must be shipped: everything but what Python and the C compiler make."""
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }


assert files(installed) == files(sources), files(installed) ^ files(sources)
assert {path.suffix for path in files(installed)} == {".py", ".c", ".h", ".cu", ".cuh", ".json", ".typed"}

assert len(list(installed.rglob("*.so"))) == (kind == "compiled")
assert (loops() is not None) == (kind == "compiled"), why_absent()

package = distribution("xarray-gpuzarr")
assert package.metadata["License-Expression"] == "Apache-2.0"
assert any(path.name == "LICENSE" for path in package.files)
assert {entry.name for entry in package.entry_points} == {"gpuzarr"}
