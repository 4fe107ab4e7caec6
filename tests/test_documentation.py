"""What the README and the pages show: Python blocks run, links inside the repository lead somewhere."""

import re
import warnings
from pathlib import Path

import pytest

from xarray_gpuzarr.cli import parser
from xarray_gpuzarr.cli.sample import SampleGrid, weather_dataset, write_sharded

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/decisions/*.md"))]
RUNS = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN_TESTS = {"stores.md"}
"""Pages whose blocks a module of their own runs."""
COMPILES = re.compile(r"^(?:```|:::)\{code-block\} python\n(.*?)^(?:```|:::)$", re.DOTALL | re.MULTILINE)
MAKE = re.compile(r"(?:^ *|`)make ([a-z][a-z-]+)", re.MULTILINE)
GPUZARR = re.compile(r"^gpuzarr ([a-z]+)", re.MULTILINE)
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

    with warnings.catch_warnings():
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
