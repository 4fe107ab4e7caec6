"""Code of the README, the pages and docstrings runs, and the files, commands and names in them exist."""

import doctest
import importlib
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import xarray as xr
from helpers.codec_pipeline import settings_taken_back
from helpers.older_versions import ZARR

import xarray_gpuzarr
from xarray_gpuzarr.cli import main, parser
from xarray_gpuzarr.cli.sample import SAMPLES, SampleGrid, weather_dataset, write_sharded

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for pattern in ("*.md", "benchmarks/README.md", "docs/*.md", "docs/decisions/*.md")
    for path in sorted(ROOT.glob(pattern))
}
RUNS = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMPILES = re.compile(r"^(?:```|:::)\{code-block\} python\n(.*?)^(?:```|:::)$", re.DOTALL | re.MULTILINE)
STARTS_PROCESSES = re.compile(r"Local\w*Cluster\(|\bClient\(\)|DataLoader\(.*num_workers=")
"""The client of a cluster that runs already starts none."""


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


@pytest.mark.parametrize(
    "page", [name for name, text in PAGES.items() if RUNS.search(text) and name != "docs/stores.md"]
)
def test_python_blocks_of_a_page_run_one_after_another(page, empty):
    names = {"__name__": "__main__"}

    with warnings.catch_warnings(), settings_taken_back():
        for block in RUNS.finditer(PAGES[page]):
            first_line = PAGES[page][: block.start(1)].count("\n")
            exec(compile("\n" * first_line + block[1], page, "exec"), names)

    assert {stored(path.parent, path.name) for path in empty.glob("*/t2m")} <= {"int16"}


def stored(store, name):
    """Return the dtype in which a variable lies in a store that opens without a warning."""
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        return xr.open_dataset(store, engine="zarr", mask_and_scale=False)[name].dtype.name


def test_what_the_quickstart_prints_is_printed(era5, monkeypatch, capsys):
    monkeypatch.chdir(era5)
    main(["info", "demo/weather.zarr"])
    printed = capsys.readouterr().out + str(xr.open_dataset("demo/weather.zarr", engine="gpuzarr", chunks={}))
    printed_blocks = re.findall(
        r"^```text\n(?:\$ [^\n]*\n)?(.*?)^```$", PAGES["docs/quickstart.md"], re.DOTALL | re.MULTILINE
    )

    shown = [text for text in printed_blocks if "variable  " in text or "<xarray.Dataset>" in text]

    assert len(shown) == 2
    assert set("".join(shown).splitlines()) - {line.rstrip() for line in printed.splitlines()} == set()


@pytest.mark.parametrize(
    "block", [block for text in PAGES.values() for block in RUNS.findall(text) if STARTS_PROCESSES.search(block)]
)
def test_block_that_starts_processes_runs_as_a_script(block, empty):
    (empty / "script.py").write_text(block)

    ran = subprocess.run([sys.executable, "script.py"], check=False, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr


def test_python_blocks_that_need_more_compile():
    for page, text in PAGES.items():
        for block in COMPILES.findall(text):
            compile(block, page, "exec")


def test_links_and_files_that_pages_name_exist():
    roots = (ROOT, ROOT / "xarray_gpuzarr")
    folders = {path.name for root in roots for path in root.iterdir() if path.is_dir()} - {"demo"}
    # Notebooks are copied into the folder of the pages when these are built.
    notebooks = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    lost = set()
    for page, text in PAGES.items():
        links = {*re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)} - notebooks
        lost |= {link for link in links if not (ROOT / page).parent.joinpath(link).exists()}
        files = {name for name in re.findall(r"`((?:[\w.]+/)+[\w.]*)`", text) if name.partition("/")[0] in folders}
        lost |= {name for name in files if not any((root / name).exists() for root in roots)}

    assert lost == set()


def test_commands_that_pages_name_exist():
    text = "\n".join(PAGES.values())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text() + (ROOT / "gpu.mk").read_text(), re.MULTILINE)
    commands = re.findall(r"^    ([a-z]+) ", parser().format_help(), re.MULTILINE)

    assert set(re.findall(r"(?:^ *|`)make ([a-z][a-z-]+)", text, re.MULTILINE)) - set(targets) == set()
    assert set(re.findall(r"^gpuzarr ([a-z]+)", text, re.MULTILINE)) - set(commands) == set()


def test_layers_of_the_page_are_those_of_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(re.findall(r"xarray_gpuzarr\.(\w+)", layer)) for layer in contracts[0]["layers"]]
    rows = re.findall(r"^\| [\w,; ]+ \| (`[a-z_`, ]+) \|", PAGES["docs/architecture.md"], re.MULTILINE)

    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == layers
    package = {path.stem for path in (ROOT / "xarray_gpuzarr").iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert set().union(*layers) == package


def test_api_page_has_every_public_name():
    assert {f"xarray_gpuzarr.{name}" for name in xarray_gpuzarr.__all__} - set(PAGES["docs/api.md"].split()) == set()


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
