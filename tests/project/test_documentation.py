"""What the README and the pages show: Python blocks run, links inside the repository lead somewhere."""

import re
import tomllib
import warnings
from itertools import chain
from pathlib import Path

import pytest
import zarr

from xarray_gpuzarr.cli import parser
from xarray_gpuzarr.cli.sample import SampleGrid, weather_dataset, write_sharded

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/decisions/*.md"))]
RUNS = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_TESTS = {"stores.md"}
"""Pages whose blocks a module of their own runs."""
COMPILES = re.compile(r"^(?:```|:::)\{code-block\} python\n(.*?)^(?:```|:::)$", re.DOTALL | re.MULTILINE)
MAKE = re.compile(r"(?:^ *|`)make ([a-z][a-z-]+)", re.MULTILINE)
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
    """A folder with the store that pages open."""
    folder = tmp_path_factory.mktemp("pages")
    write_sharded(weather_dataset(SampleGrid(n_lat=61, n_lon=120, n_hours=48)), str(folder / "era5.zarr"))
    return folder


@pytest.mark.parametrize("page", named(page for page in PAGES if blocks(RUNS, page) and page.name not in OWN_TESTS))
def test_python_blocks_of_a_page_run_one_after_another(page, era5, monkeypatch):
    monkeypatch.chdir(era5)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = {"__name__": "__main__"}

    setting = "codec_pipeline.path"
    with warnings.catch_warnings(), zarr.config.set({setting: zarr.config.get(setting)}):
        for block in blocks(RUNS, page):
            exec(compile(block, page, "exec"), names)


def test_python_blocks_that_need_more_compile():
    for page in PAGES:
        for block in blocks(COMPILES, page):
            compile(block, page, "exec")


def test_there_are_blocks_to_run():
    assert sum(len(blocks(RUNS, page)) for page in PAGES) > 8


@pytest.mark.parametrize("page", named(page for page in PAGES if LINK.search(page.read_text())))
def test_links_inside_the_repository_lead_somewhere(page):
    targets = {target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()}

    notebooks = {f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.ipynb")}  # copied when pages are built
    assert targets - notebooks == set()


def test_pages_name_existing_commands():
    text = "\n".join(page.read_text() for page in PAGES)

    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(MAKE.findall(text)) - set(targets) == set()
    assert set(GPUZARR.findall(text)) - set(parser()._subparsers._group_actions[0].choices) == set()


def test_supported_versions_are_those_that_are_tested():
    page = (ROOT / "docs" / "installation.md").read_text()
    rows = dict(re.findall(r"^\| (xarray|zarr-python|dask|NumPy) \| (.*) \|$", page, re.MULTILINE))
    project = (ROOT / "pyproject.toml").read_text()
    pins = (ROOT / "constraints.txt").read_text()

    for label, name in {"xarray": "xarray", "zarr-python": "zarr", "dask": "dask", "NumPy": "numpy"}.items():
        oldest = re.search(rf'^  "{name}(?:\[array\])?>=(.+)",$', project, re.MULTILINE)[1]
        newest = re.search(rf"^{name}==(\d+\.\d+)", pins, re.MULTILINE)[1]
        assert rows[label] == f"{oldest} | {newest}"


def test_files_that_pages_name_exist():
    roots = (ROOT, ROOT / "xarray_gpuzarr")
    first = {path.name for root in roots for path in root.iterdir() if path.is_dir()} - {"demo"}
    named = {name for page in PAGES for name in FILE.findall(page.read_text()) if name.partition("/")[0] in first}

    assert len(named) > 20
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


def test_floors_of_the_page_are_those_of_the_contract():
    page = (ROOT / "docs" / "architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [re.findall(r"xarray_gpuzarr\.(\w+)", floor) for floor in contracts[0]["layers"]]

    shown = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| [\w,; ]+ \| (`[a-z_`, ]+) \|", page, re.MULTILINE)]
    package = {path.stem for path in (ROOT / "xarray_gpuzarr").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert [set(floor) for floor in shown] == [set(floor) for floor in floors]
    assert set(chain(*shown)) == package
