"""The examples in docstrings run, in a folder with a store ``era5.zarr``."""

import doctest
import importlib
from pathlib import Path

import pytest

import xarray_gpuzarr
from xarray_gpuzarr.cli.sample import SAMPLES, weather_dataset, write_sharded

ROOT = Path(xarray_gpuzarr.__file__).parent
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.usefixtures("usual_pipeline")
@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module, tmp_path, monkeypatch):
    write_sharded(weather_dataset(SAMPLES["small"]), str(tmp_path / "era5.zarr"))
    monkeypatch.chdir(tmp_path)

    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0
