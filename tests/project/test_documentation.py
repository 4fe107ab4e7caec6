"""The README, the pages, docstrings and issue templates: their code runs, and what they name is there."""

import doctest
import importlib
import re
import subprocess
import sys
import tomllib
import warnings
from itertools import chain
from pathlib import Path

import pytest
import xarray as xr
from helpers.codec_pipeline import settings_taken_back
from helpers.older_versions import ZARR

import xarray_gpuzarr
from xarray_gpuzarr.cli import main, parser
from xarray_gpuzarr.cli.sample import SAMPLES, SampleGrid, weather_dataset, write_sharded

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/decisions/*.md")),
]
RUNS = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_TESTS = {"stores.md"}
"""Pages whose blocks a module of their own runs."""
COMPILES = re.compile(r"^(?:```|:::)\{code-block\} python\n(.*?)^(?:```|:::)$", re.DOTALL | re.MULTILINE)
STARTS = re.compile(r"Local\w*Cluster\(|\bClient\(\)|DataLoader\(.*num_workers=")
"""What starts processes; not a client of a cluster that runs already."""
MAKE = re.compile(r"(?:^ *|`)make ([a-z][a-z-]+)", re.MULTILINE)
PRINTED = re.compile(r"^```text\n(?:\$ [^\n]*\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
GPUZARR = re.compile(r"^gpuzarr ([a-z]+)", re.MULTILINE)
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]*)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(pattern, page):
    """Return the code of a page with the line numbers that it has there."""
    text = page.read_text()
    return ["\n" * (text[: match.start(1)].count("\n")) + match[1] for match in pattern.finditer(text)]


def named(pages):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


@pytest.fixture(scope="module")
def era5(tmp_path_factory):
    """A folder with the stores that pages open: one of the reader's, and the demo's."""
    folder = tmp_path_factory.mktemp("pages")
    write_sharded(weather_dataset(SampleGrid(n_lat=61, n_lon=120, n_hours=48)), str(folder / "era5.zarr"))
    write_sharded(weather_dataset(SAMPLES["normal"]), str(folder / "demo" / "weather.zarr"))
    return folder


@pytest.fixture
def empty(era5, tmp_path, monkeypatch):
    """A working folder in which pages find these stores, and nothing that another page has written."""
    for store in ("era5.zarr", "demo"):
        (tmp_path / store).symlink_to(era5 / store)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.mark.parametrize("page", named(page for page in PAGES if blocks(RUNS, page) and page.name not in OWN_TESTS))
def test_python_blocks_of_a_page_run_one_after_another(page, empty):
    names = {"__name__": "__main__"}

    with warnings.catch_warnings(), settings_taken_back():
        for block in blocks(RUNS, page):
            exec(compile(block, page, "exec"), names)

    assert {stored(path.parent, path.name) for path in empty.glob("*/t2m")} <= {"int16"}


def stored(store, name):
    """Return the dtype in which a variable lies in a store that opens without a warning."""
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        return xr.open_dataset(store, engine="zarr", mask_and_scale=False)[name].dtype.name


def test_what_the_quickstart_prints_is_printed(era5, monkeypatch, capsys):
    page = ROOT / "docs" / "quickstart.md"
    monkeypatch.chdir(era5)
    main(["info", "demo/weather.zarr"])
    printed = capsys.readouterr().out + str(xr.open_dataset("demo/weather.zarr", engine="gpuzarr", chunks={}))
    lines = {line.rstrip() for line in printed.splitlines()}

    shown = [text for text in PRINTED.findall(page.read_text()) if "variable  " in text or "<xarray.Dataset>" in text]

    assert shown
    assert [line for text in shown for line in text.splitlines() if line not in lines] == []


def test_stores_of_format_2_are_rewritten_and_written_back_as_pages_say(empty):
    source = xr.open_dataset("era5.zarr", engine="zarr").drop_encoding().load()
    (empty / "era5.zarr").unlink()
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
    source.to_zarr("era5.zarr", zarr_format=2, encoding={"t2m": {"chunks": (12, 31, 60), **packing}})
    (recipe,) = [block for block in blocks(RUNS, ROOT / "docs" / "faq.md") if "sharded.zarr" in block]
    (copying,) = [line for line in blocks(RUNS, ROOT / "docs" / "quickstart.md") if "to_host().to_zarr" in line]
    original = xr.open_dataset("era5.zarr", engine="gpuzarr", chunks={})

    with warnings.catch_warnings(action="ignore"):
        exec(recipe)
        exec(copying.replace(")\n", ", zarr_format=2)\n"), {"ds": original})

    sharded, copied = (xr.open_dataset(store, engine="zarr") for store in ("sharded.zarr", "copy.zarr"))
    xr.testing.assert_identical(sharded, original)
    xr.testing.assert_identical(copied, original)
    assert (sharded.t2m.encoding["shards"], sharded.t2m.encoding["dtype"]) == ((24, 61, 120), "int16")


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, id=page.name) for page in PAGES for block in blocks(RUNS, page) if STARTS.search(block)],
)
def test_block_that_starts_processes_runs_as_a_script(block, empty):
    (empty / "script.py").write_text(block)

    ran = subprocess.run([sys.executable, "script.py"], check=False, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr


def test_python_blocks_that_need_more_compile():
    for page in PAGES:
        for block in blocks(COMPILES, page):
            compile(block, page, "exec")


@pytest.mark.parametrize("page", named(page for page in PAGES if LINK.search(page.read_text())))
def test_links_inside_the_repository_lead_somewhere(page):
    targets = {target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()}

    notebooks = {f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.ipynb")}  # copied when pages are built
    assert targets - notebooks == set()


def test_pages_name_existing_commands():
    text = "\n".join(page.read_text() for page in PAGES)
    makefiles = (ROOT / "Makefile").read_text() + (ROOT / "gpu.mk").read_text()

    assert set(MAKE.findall(text)) - set(re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE)) == set()
    assert [name for name in set(GPUZARR.findall(text)) if f"\n    {name} " not in parser().format_help()] == []


def test_files_that_pages_name_exist():
    roots = (ROOT, ROOT / "xarray_gpuzarr")
    first = {path.name for root in roots for path in root.iterdir() if path.is_dir()} - {"demo"}
    named = {name for page in PAGES for name in FILE.findall(page.read_text()) if name.partition("/")[0] in first}

    assert len(named) > 20
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


def test_layers_of_the_page_are_those_of_the_contract():
    page = (ROOT / "docs" / "architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"xarray_gpuzarr\.(\w+)", layer) for layer in contracts[0]["layers"]]

    shown = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| [\w,; ]+ \| (`[a-z_`, ]+) \|", page, re.MULTILINE)]
    package = {path.stem for path in (ROOT / "xarray_gpuzarr").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert [set(layer) for layer in shown] == [set(layer) for layer in layers]
    assert set(chain(*shown)) == package


def test_api_page_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()

    assert {f"xarray_gpuzarr.{name}" for name in xarray_gpuzarr.__all__} - set(page.split()) == set()


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "xarray_gpuzarr").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.usefixtures("usual_pipeline")
@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module, tmp_path, monkeypatch):
    if module.endswith(".codec_pipeline.explanation") and ZARR < (3, 2):
        pytest.skip("zarr-python asks pipelines of others from 3.2 on")
    write_sharded(weather_dataset(SAMPLES["small"]), str(tmp_path / "era5.zarr"))
    monkeypatch.chdir(tmp_path)

    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0
