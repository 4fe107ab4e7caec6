"""``gpuzarr info`` and ``gpuzarr bench`` of arrays that are no dataset: single ones, and the levels of a pyramid."""

import json

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import settings_taken_back
from helpers.data.pyramids import write_pyramid

from xarray_gpuzarr.backend.open_errors import IMAGE_RECIPES_HINT
from xarray_gpuzarr.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")

LEVELS = {"0": [2, 256, 192], "1": [2, 128, 96], "2": [2, 64, 48]}
WHY = {
    "0.4": "The dimensions of '0' have no names, which a dataset needs. ",
    "0.5": "'y' is 256 long in '0' and 128 in '1': these arrays are no dataset. ",
}


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with settings_taken_back():
        yield


@pytest.fixture(scope="module", params=WHY)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def image(tmp_path_factory, version):
    path = tmp_path_factory.mktemp("images") / "ome.zarr"
    write_pyramid(path, version)
    return str(path)


def shown(capsys, *arguments):
    """Return what a command prints; it succeeds."""
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_info_lists_each_level_of_a_pyramid(image, version, capsys):
    document = json.loads(shown(capsys, "info", image, "--device", "host", "--json"))

    assert document["group"] == "/"
    assert {row["variable"]: row["shape"] for row in document["variables"]} == LEVELS
    assert {row["dtype"] for row in document["variables"]} == {"uint16"}
    assert {row["where"] for row in document["variables"]} == {"host"}
    assert [group["path"] for group in document["groups"]] == ["labels", "labels/cells"]
    assert document["note"].startswith(WHY[version])


def test_info_prints_why_levels_are_no_dataset(image, version, capsys):
    out = shown(capsys, "info", image)

    assert out.startswith(f"{image}, group /, Zarr format ")
    assert WHY[version] in out
    assert IMAGE_RECIPES_HINT in out


@pytest.mark.parametrize(
    ("below", "options", "path"),
    [("/0", [], "/"), ("/0/", [], "/"), ("", ["--group", "0"], "/0"), ("/labels", ["--group", "cells/0"], "/cells/0")],
)
def test_info_of_a_single_array(image, capsys, below, options, path):
    document = json.loads(shown(capsys, "info", image + below, *options, "--json"))
    out = shown(capsys, "info", image + below, *options)

    assert document["array"] == path
    assert [row["variable"] for row in document["variables"]] == ["0"]
    assert document["variables"][0]["shape"][-2:] == [256, 192]
    assert document["note"].startswith("This is a single array. ")
    assert out.startswith(f"{image}{below}, array {path}, Zarr format ")
    assert "consolidated" not in out.splitlines()[0]


def test_info_of_arrays_that_zarr_python_decodes(tmp_path, capsys):
    group = zarr.create_group(tmp_path / "s.zarr")
    group.create_array("names", shape=(2,), dtype=str, dimension_names=["x"])
    group.create_array("numbers", data=np.arange(3), dimension_names=["x"])

    document = json.loads(shown(capsys, "info", str(tmp_path / "s.zarr"), "--device", "host", "--json"))

    assert {row["variable"]: row["where"] for row in document["variables"]} == {
        "names": "host, by xarray",
        "numbers": "host",
    }


@pytest.mark.parametrize(
    ("below", "options", "read"),
    [
        ("", [], "0: 2\u00d7256\u00d7192 uint16"),
        ("", ["--variable", "2"], "2: 2\u00d764\u00d748 uint16"),
        ("", ["--group", "1"], "1: 2\u00d7128\u00d796 uint16"),
        ("", ["--group", "labels/cells"], "labels/cells/0: 256\u00d7192 int32"),
        ("", ["--group", "labels/cells/1"], "labels/cells/1: 128\u00d796 int32"),
        ("/2", [], "{image}/2: 2\u00d764\u00d748 uint16"),
    ],
)
def test_bench_reads_the_largest_level_or_the_one_that_is_named(image, capsys, below, options, read):
    out = shown(capsys, "bench", image + below, *options, "--rounds", "1")

    assert out.startswith(f"{read.format(image=image)}, ")
    assert {line.split(" ")[0] for line in out.splitlines()} >= {"zarr-python", "gpuzarr"}
    assert out.splitlines()[-1].endswith("So zarr-python and this package read the array itself.")


def test_what_fails_for_another_reason_is_an_error_still(tmp_path, capsys):
    group = zarr.create_group(tmp_path / "s.zarr")
    group.create_array("t", data=np.arange(3), dimension_names=["x"], attributes={"units": "days since once"})

    assert main(["info", str(tmp_path / "s.zarr")]) == 2
    assert capsys.readouterr().err.startswith("StoreReadError: cannot open ")
