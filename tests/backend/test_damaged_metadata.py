"""Documents of metadata that are no JSON objects: the error names the store, the document and what is wrong with it."""

import numpy as np
import pytest
import xarray as xr
from helpers.data.datasets import open_ours
from helpers.stores.fakes import put, take
from zarr.storage import LocalStore

from xarray_gpuzarr import MetadataError

pytestmark = pytest.mark.filterwarnings("ignore")

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
