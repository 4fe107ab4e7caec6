"""The range of versions: pyproject.toml, the page on installation and what continuous integration installs agree."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
SUPPORTED = {
    "xarray": ("xarray", "2025.11", "2026.9"),
    "zarr-python": ("zarr", "3.1.5", "3.4"),
    "dask": ("dask", "2025.9.2", "2026.8"),
    "NumPy": ("numpy", "2.2", "2.5"),
    "numcodecs": ("numcodecs", "0.16.5", "0.17"),
    "deflate": ("deflate", "0.9.0", "0.9"),
}
"""Row of the page -> distribution, oldest, newest tested."""


def requirements():
    """Return every requirement of the package and of its extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def brought_by(extra):
    """Return the names of the distributions that an extra asks for, by way of others too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [Requirement(line) for line in extras[extra]]
    others = [other for each in wanted if each.name == "xarray-gpuzarr" for other in each.extras]
    return {each.name for each in wanted if each.name != "xarray-gpuzarr"}.union(*map(brought_by, others))


def pins(text):
    return dict(line.split("==") for line in text.splitlines())


def test_page_and_package_say_what_is_supported():
    page = (ROOT / "docs" / "installation.md").read_text()

    for label, (name, oldest, newest) in SUPPORTED.items():
        assert re.search(rf"^\| {label} \| {oldest} \| {newest} \|", page, re.MULTILINE)
        assert {str(wanted.specifier) for wanted in requirements() if wanted.name == name} == {f">={oldest}"}


@pytest.mark.parametrize(("name", "oldest", "newest"), SUPPORTED.values(), ids=SUPPORTED)
def test_both_ends_are_what_is_tested(name, oldest, newest):
    command = [sys.executable, str(ROOT / ".ci" / "oldest.py")]
    with_oldest = pins(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert Version(with_oldest[name]) == Version(oldest)
    assert pins((ROOT / ".ci" / "constraints.txt").read_text())[name].startswith(f"{newest}.")


def test_distributed_is_of_dasks_age():
    distributed = {str(wanted.specifier) for wanted in requirements() if wanted.name == "distributed"}

    assert distributed == {f">={SUPPORTED['dask'][1]}"}


def test_a_cluster_without_gpus_gets_distributed_alone():
    assert brought_by("distributed") == {"distributed"}
    assert brought_by("dask-cuda") == {"distributed", "dask-cuda", "numba-cuda"}


@pytest.mark.parametrize("extra", ["cuda12", "cuda13", "gds12", "gds13"])
def test_a_gpu_without_a_cluster_does_without_the_dask_that_dask_cuda_pins(extra):
    assert not brought_by(extra) & {"dask", "distributed", "dask-cuda"}


@pytest.mark.parametrize("cuda", [12, 13])
def test_pins_for_gpus_lie_in_the_range(cuda):
    newer = pins((ROOT / ".ci" / f"constraints-cuda{cuda}.txt").read_text())

    assert Version(SUPPORTED["dask"][1]) <= Version(newer["dask"]) == Version(newer["distributed"])
    assert Version(newer["dask"]) <= Version(pins((ROOT / ".ci" / "constraints.txt").read_text())["dask"])


def test_old_test_libraries_are_not_newer_than_new_ones():
    new, old = (pins((ROOT / ".ci" / name).read_text()) for name in ("constraints.txt", "constraints-oldest.txt"))

    assert all(Version(version) <= Version(new[name]) for name, version in old.items())
