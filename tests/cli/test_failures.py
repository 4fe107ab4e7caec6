"""What the command line says of stores that cannot be opened: one remedy for each cause."""

import sys

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.pyramids import write_pyramid
from zarr.codecs import BytesCodec

from xarray_gpuzarr.backend.open_errors import IMAGE_RECIPES_HINT
from xarray_gpuzarr.cli import failures, main
from xarray_gpuzarr.cli.failures import Address, naming_failures
from xarray_gpuzarr.errors import StoreReadError

pytestmark = pytest.mark.filterwarnings("ignore")


def told(capsys, *arguments):
    """Return what a command finds and what it says to do."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["tried", "found", "do"]
    return lines[2][9:], lines[3][9:]


def test_a_damaged_group_is_not_called_absent(tmp_path, capsys):
    zarr.create_group(tmp_path / "s.zarr", path="a")
    (tmp_path / "s.zarr/a/zarr.json").write_text("{")

    assert "no group" not in told(capsys, "info", str(tmp_path / "s.zarr"), "--group", "a")[0]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_demo_of_an_array_in_place_of_a_group(zarr_format, tmp_path, capsys):
    xr.Dataset({"t": ("x", [1.0])}).to_zarr(tmp_path / "s.zarr", zarr_format=zarr_format)

    found, do = told(capsys, "demo", "--dir", f"{tmp_path}/demo", "--source", f"{tmp_path}/s.zarr/t/")

    assert found.startswith("an array, not a group")
    assert do == f"give the group that holds 't': {tmp_path}/s.zarr"


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("below", ["", "/0", "/0/"])
def test_a_demo_of_an_image(version, below, tmp_path, capsys):
    write_pyramid(tmp_path / "image.zarr", version)

    found, do = told(capsys, "demo", "--dir", f"{tmp_path}/demo", "--source", f"{tmp_path}/image.zarr{below}")

    assert found.startswith("The dimensions of '0' have no names" if version == "0.4" else "'y' is 256 long in '0'")
    assert do == f"gpuzarr info and gpuzarr bench take single arrays; {IMAGE_RECIPES_HINT}"


@pytest.mark.parametrize("command", ["info", "bench"])
@pytest.mark.parametrize(
    ("path", "do"),
    [("x.zarr", "check the path (perhaps 's.zarr')"), ("in/s.zarr", "check the path: there is no folder '{tmp}/in'")],
)
def test_where_nothing_is_a_near_name_is_offered(tmp_path, capsys, command, path, do):
    zarr.create_group(tmp_path / "s.zarr")

    found, said = told(capsys, command, str(tmp_path / path))

    assert found.startswith("nothing is there")
    assert said == do.format(tmp=tmp_path)


def test_a_benchmark_of_groups_names_them(tmp_path, capsys):
    for group, values in (("a", [1.0]), ("a/b", [1.0, 2.0])):
        xr.Dataset({"t": ("x", values)}).to_zarr(tmp_path / "s.zarr", group=group, mode="a", consolidated=False)

    assert told(capsys, "bench", str(tmp_path / "s.zarr"))[1] == (
        "choose a group, such as --group a/b; there are a, a/b"
    )
    assert told(capsys, "bench", str(tmp_path / "s.zarr"), "--group", "a", "--variable", "b")[1].endswith(
        "its group with --group: a/b"
    )


@pytest.mark.parametrize("layout", ["array of times", "empty group in a group"])
def test_a_benchmark_without_numbers_asks_for_some(tmp_path, capsys, layout):
    if layout == "array of times":
        zarr.create_array(tmp_path / "s.zarr", data=np.zeros(3, "M8[s]"))
    else:
        zarr.create_group(tmp_path / "s.zarr").create_group("a")

    found, do = told(capsys, "bench", str(tmp_path / "s.zarr"))

    assert found == "variables that this engine reads: none"
    assert do == "give a store with an array of numbers; gpuzarr info shows what is in this one"


def test_an_empty_folder(tmp_path, capsys):
    assert told(capsys, "info", str(tmp_path))[1] == "name the folder that holds one of them"


def test_a_kind_of_address_that_is_not_known(capsys):
    assert told(capsys, "info", "nope://bucket/s.zarr")[1].startswith("correct what stands before ://, which ")


def remedy(error, address, monkeypatch):
    """Return what is said to do where opening raises `error`, and nothing else can be opened."""
    monkeypatch.setattr(failures.Address, "open", lambda *_: None)
    with pytest.raises(StoreReadError) as raised, naming_failures(Address(store=address), "opening it"):
        raise error
    return raised.value.do


class NoCredentialsError(Exception):
    """As botocore's is called."""


@pytest.mark.parametrize(
    ("error", "address", "do"),
    [
        (PermissionError(13, "Permission denied"), "/data/s.zarr", "let this user read it"),
        (PermissionError(13, "Permission denied"), "simplecache::file:///data/s.zarr", "let this user read it"),
        (PermissionError("Access Denied"), "s3://bucket/s.zarr", "give credentials that may read it"),
        (NoCredentialsError("Unable to locate credentials"), "s3://bucket/s.zarr", "give credentials that may read it"),
        (ImportError("Install it"), "s3://bucket/s.zarr", "check the path, and that the packages"),
        (ModuleNotFoundError("No module named 'ocifs'", name="ocifs"), "oci://b/s.zarr", "pip install ocifs"),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), "/data/a.nc", "pip install h5py"),
        (TypeError("'storage_options' was provided but unused"), "/data/s.zarr", "leave --storage-options out"),
        (OSError("else"), "s3://bucket/s.zarr", "check the path, and that the packages"),
    ],
)
def test_a_remedy_for_each_cause(error, address, do, monkeypatch):
    assert remedy(error, address, monkeypatch).startswith(do)


@pytest.mark.parametrize(
    ("address", "package"), [("sftp://b/s.zarr", "paramiko"), ("simplecache::gs://b/s.zarr", "gcsfs")]
)
def test_what_fsspec_needs_is_named(address, package, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed

    assert told(capsys, "info", address)[1] == f"pip install {package}"


def test_a_codec_that_a_known_package_brings(tmp_path, capsys):
    array = zarr.create_group(tmp_path / "s.zarr").create_array(
        "t", shape=(3,), dtype="f4", dimension_names=["x"], serializer=BytesCodec()
    )
    document = tmp_path / "s.zarr" / array.path / "zarr.json"
    document.write_text(document.read_text().replace('"zstd"', '"imagecodecs_jpegxl"'))

    assert told(capsys, "info", str(tmp_path / "s.zarr"))[1].startswith("pip install imagecodecs, or leave")
