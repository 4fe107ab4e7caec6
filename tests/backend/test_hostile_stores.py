"""Stores that were made to reach what is beside them, or to run code: nothing is read there, and nothing runs.

Of damaged metadata, the error names the store, the document and what is wrong with it.
"""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_values
from helpers.data.damage import explained
from helpers.data.datasets import open_ours, open_stock
from helpers.stores.fakes import put, take
from zarr.storage import LocalStore

from xarray_gpuzarr import MetadataError, StoreReadError
from xarray_gpuzarr.cli import main
from xarray_gpuzarr.errors import visible

pytestmark = pytest.mark.filterwarnings("ignore")

SECRET = np.arange(1.0, 9.0)
OUTSIDE = ["..", "../s", "./../s", "a/../../s", "..\\s", "/s", "{beside}/s"]
GROUP = {2: {"zarr_format": 2}, 3: {"zarr_format": 3, "node_type": "group", "attributes": {}}}


def with_consolidated(path, zarr_format, array, *names):
    """Write a group whose consolidated metadata have an array under each name, and groups above it."""
    above = [name[:i] for name in names for i, character in enumerate(name) if character == "/" and i]
    group = GROUP[zarr_format]
    path.mkdir(exist_ok=True)
    if zarr_format == 2:
        metadata = {f"{key}.zgroup": group for key in ("", *(f"{folder}/" for folder in above))}
        for name in names:
            metadata |= {f"{name}/.zarray": array, f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}}
        (path / ".zgroup").write_text(json.dumps(group))
        (path / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}))
    else:
        metadata = dict.fromkeys(above, group) | dict.fromkeys(names, array)
        inline = {"kind": "inline", "must_understand": False, "metadata": metadata}
        (path / "zarr.json").write_text(json.dumps(group | {"consolidated_metadata": inline}))


def values_of(opener, path):
    """Return all values that a store gives, as bytes."""
    opened = opener(str(path), engine="gpuzarr", device="host", consolidated=True)
    nodes = opened.subtree if isinstance(opened, xr.DataTree) else [opened]
    return b"".join(variable.values.tobytes() for node in nodes for variable in node.variables.values())


@pytest.fixture(params=[2, 3])
def beside(request, tmp_path):
    """A folder with a secret array, the array's metadata, and the format of both."""
    dimensions = {"dimension_names": ["x"]} if request.param == 3 else {}
    zarr.create_array(tmp_path / "s", data=SECRET, zarr_format=request.param, compressors=None, **dimensions)
    name = "zarr.json" if request.param == 3 else ".zarray"
    return tmp_path, json.loads((tmp_path / "s" / name).read_text()), request.param


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree])
@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_in_metadata_leads_out_of_a_store(beside, opener, name):
    folder, array, zarr_format = beside
    with_consolidated(folder / "h.zarr", zarr_format, array, name.format(beside=folder))

    try:
        got = values_of(opener, folder / "h.zarr")
    except (ValueError, FileNotFoundError) as refused:
        got = str(refused).encode()

    assert SECRET[1:].tobytes() not in got


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree])
def test_the_same_metadata_read_what_lies_inside(beside, opener):
    folder, array, zarr_format = beside
    with_consolidated(folder, zarr_format, array, "s")

    assert SECRET[1:].tobytes() in values_of(opener, folder)


IMPOSSIBLE = {"NUL": "a\0b", "half of a surrogate pair": "a\ud800b", "too long": "n" * 300}
"""Names that no file can have."""


@pytest.mark.every_decoder
@pytest.mark.both_ways
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_name_that_no_file_can_have_is_an_error_of_its_variable_only(beside, name, chunks):
    folder, array, zarr_format = beside
    with_consolidated(folder, zarr_format, array, name, "s")

    opened = open_ours(folder, chunks=chunks, consolidated=True)

    assert_same_values(opened["s"].values, open_stock(folder, consolidated=True)["s"].values)
    with explained(StoreReadError, visible(name)):
        opened[name].load()


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_name_that_no_file_can_have_is_shown_by_info(beside, name, capsys):
    folder, array, zarr_format = beside
    with_consolidated(folder, zarr_format, array, name)

    assert main(["info", str(folder)]) == 0

    assert visible(name)[:8] in capsys.readouterr().out


class Touch:
    """What makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.skipif(not hasattr(zarr.errors, "PickleCodecDisabledError"), reason="this zarr-python unpickles")
@pytest.mark.every_combination
@pytest.mark.parametrize("dtype", ["<f8", "|O"])
@pytest.mark.parametrize("place", ["filters", "compressor"])
@pytest.mark.parametrize("behind", [None, "vlen-utf8", "shuffle"])
def test_no_pickle_runs(tmp_path, dtype, place, behind):
    first = [{"id": behind}] if behind else []
    document = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": dtype, "fill_value": 0, "order": "C"}
    if place == "filters":
        document |= {"filters": [*first, {"id": "pickle"}], "compressor": None}
    else:
        document |= {"filters": first or None, "compressor": {"id": "pickle"}}
    array = tmp_path / "h.zarr" / "t"
    array.mkdir(parents=True)
    (array.parent / ".zgroup").write_text(json.dumps(GROUP[2]))
    (array / ".zarray").write_text(json.dumps(document))
    (array / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["x"]}))
    (array / "0").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))

    with pytest.raises(Exception, match=r"pickle|No Zarr data type"):
        open_ours(array.parent).t.values  # noqa: B018

    assert not (tmp_path / "ran").exists()


# ---- documents of metadata that are no JSON objects


DATA = xr.Dataset({"t": (("y", "x"), np.arange(64.0).reshape(8, 8))})
DAMAGES = {
    "cut": (lambda document: document[: len(document) // 2], "no JSON"),
    "empty": (lambda _: b"", "0 bytes that are no JSON"),
    "binary": (lambda document: bytes(range(128, 256)) + document, "no JSON"),
}
DOCUMENTS = {2: [".zgroup", ".zattrs", "t/.zarray", "t/.zattrs"], 3: ["zarr.json", "t/zarr.json"]}
KEYS = [(zarr_format, key) for zarr_format, keys in DOCUMENTS.items() for key in keys]


def damaged(path, key, damage=DAMAGES["cut"][0], **written):
    """Write a store, and a group in it, and damage a document."""
    DATA.to_zarr(path, consolidated=False, **written)
    DATA.to_zarr(path, group="g", mode="a", consolidated=False, **written)
    store = LocalStore(path)
    put(store, key, damage(take(store, key)))
    return path


@pytest.mark.parametrize(("zarr_format", "key"), KEYS)
@pytest.mark.parametrize(("damage", "found"), DAMAGES.values(), ids=DAMAGES)
def test_the_document_and_the_store_are_named(tmp_path, zarr_format, key, damage, found):
    path = damaged(tmp_path / "copy-7.zarr", key, damage, zarr_format=zarr_format)

    with pytest.raises(MetadataError, match=f"'{path}': its document '{key}' is damaged") as caught:
        open_ours(path, consolidated=False)

    assert found in caught.value.found


@pytest.mark.parametrize(("group", "key"), [(None, "g/t/zarr.json"), ("g", "g/zarr.json"), ("g", "zarr.json")])
def test_documents_of_groups_are_named(tmp_path, group, key):
    path = damaged(tmp_path / "s.zarr", key)

    with pytest.raises(MetadataError, match=f"'{key}'"):
        xr.open_datatree(path, engine="gpuzarr", group=group, consolidated=None if key == "zarr.json" else False)


def test_damaged_consolidated_metadata_need_not_be_read(tmp_path):
    path = tmp_path / "s.zarr"
    DATA.to_zarr(path, zarr_format=2, consolidated=True)
    (path / ".zmetadata").write_text("{")

    with pytest.raises(MetadataError, match="consolidated=False"):
        open_ours(path)

    xr.testing.assert_equal(open_ours(path, consolidated=False).load(), DATA)
