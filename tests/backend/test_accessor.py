"""``.gpuzarr`` on datasets, arrays and trees: the table that explains, and copies to the host."""

import html
import pickle
import re

import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client
from helpers.compare import assert_same_values
from helpers.data.corpus import checked_shards
from helpers.simulated import worker as simulated_worker
from helpers.simulated.simulator import SimulatedDevice
from helpers.strict_duck import StrictArray
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend import lazy_array, open_options
from xarray_gpuzarr.backend.accessor.explanation import Explanation, format_nbytes
from xarray_gpuzarr.backend.accessor.variable_rows import Row
from xarray_gpuzarr.decoders.cuda import CudaDecoder

DIMS = ("time", "y", "x")
FIELD = np.arange(48 * 6 * 8, dtype="f8").reshape(48, 6, 8) % 100
SHAPES = ("48\u00d76\u00d78", "24\u00d76\u00d78", "1\u00d76\u00d78")
HOURS = np.datetime64("2020-01-01", "ns") + np.arange(48) * np.timedelta64(1, "h")
PACKED = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1, "chunks": (1, 6, 8)}


@pytest.fixture
def kinds() -> MemoryStore:
    """One variable of every kind that `explain` tells apart."""
    store = MemoryStore()
    dataset = xr.Dataset(
        {"packed": (DIMS, FIELD), "seen": ("time", HOURS), "name": ("y", list("abcdef"))},
        coords={"y": np.arange(6.0), "area": (("y", "x"), np.ones((6, 8), "f4"))},
    )
    dataset.to_zarr(store, consolidated=False, encoding={"packed": {**PACKED, "shards": (24, 6, 8)}})
    group = zarr.open_group(store, mode="a")
    lzma = [zarr.codecs.numcodecs.LZMA()]
    group.create_array("rare", data=FIELD.astype("u1"), chunks=(8, 6, 8), compressors=lzma, dimension_names=DIMS)
    keywords = {"shape": (48, 6, 8), "chunks": (48, 6, 8), "dtype": "f4", "dimension_names": DIMS}
    group.create_array("checked", **keywords, **checked_shards((24, 6, 8)))
    return store


@pytest.fixture(params=[None, {}], ids=["lazy", "chunked"])
def opened(kinds, request):
    dataset = xr.open_dataset(kinds, engine="gpuzarr", device="host", chunks=request.param, consolidated=False)
    return dataset.assign(loaded=("x", np.arange(8, dtype="i4")))


OF_HOST = {"codecs": "bytes(little) > zstd", "where": "host"}
LEFT = {"dims": DIMS, "shape": (48, 6, 8), "cast": "none", "where": "host, by zarr-python"}
ROWS = (
    Row(
        variable="packed", dims=DIMS, shape=(48, 6, 8), stored_dtype="int16", dtype="float64",
        cast="mask -1, * 0.5, + 3", shard_shape=(24, 6, 8), n_shards=2, chunk_shape=(1, 6, 8), n_chunks=48,
        decompressed_nbytes=4608, decoded_nbytes=18432, **OF_HOST,
    ),
    Row(
        variable="rare", stored_dtype="uint8", dtype="uint8", chunk_shape=(8, 6, 8), n_chunks=6,
        codecs="bytes > numcodecs.lzma", why="codec numcodecs.lzma is decoded chunk by chunk",
        decompressed_nbytes=2304, decoded_nbytes=2304, **LEFT,
    ),
    Row(
        variable="checked", stored_dtype="float32", dtype="float32", codecs="sharding(index at end) > crc32c",
        why="codecs around the sharding codec", decompressed_nbytes=9216, decoded_nbytes=9216, **LEFT,
    ),
    Row(
        variable="area", dims=("y", "x"), shape=(6, 8), stored_dtype="float32", dtype="float32", chunk_shape=(6, 8),
        n_chunks=1, cast="none", decompressed_nbytes=192, decoded_nbytes=192, **OF_HOST,
    ),
    Row(
        variable="loaded", dims=("x",), shape=(8,), stored_dtype=None, dtype="int32", where="in memory",
        why="already loaded, as numpy.ndarray", decoded_nbytes=32,
    ),
)  # fmt: skip
OF_XARRAY = {"y": "index coordinate", "seen": "times stay with xarray", "name": "text and objects stay with xarray"}


def by_name(explanation: Explanation) -> dict[str, Row]:
    return {row.variable: row for row in explanation.rows}


@pytest.mark.parametrize("expected", ROWS, ids=lambda row: row.variable)
def test_row_of_each_kind_of_variable_for_which_nothing_is_read(opened, kinds, expected):
    sync(kinds.clear())

    assert by_name(opened.gpuzarr.explain())[expected.variable] == expected


@pytest.mark.parametrize(("name", "why"), OF_XARRAY.items())
def test_row_of_what_xarray_reads(opened, name, why):
    row, variable = by_name(opened.gpuzarr.explain())[name], opened[name]

    assert (row.dims, row.shape, row.decoded_nbytes) == (variable.dims, variable.shape, variable.nbytes)
    assert (row.where, row.why) == ("host, by xarray", why)


def test_every_variable_has_one_row_and_data_variables_come_first(opened):
    names = [row.variable for row in opened.gpuzarr.explain().rows]

    assert names == [*opened.data_vars, *opened.coords]


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_table_fits_the_terminal_and_breaks_no_shape(opened, width):
    text = opened.gpuzarr.explain().to_text(width)

    assert max(map(len, text.splitlines())) <= width
    for part in ("packed", *SHAPES, "int16 → float64", "host"):
        assert part in text


def test_text_takes_the_width_of_the_terminal(opened, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    explanation = opened.gpuzarr.explain()

    assert str(explanation) == repr(explanation) == explanation.to_text(150)


@pytest.mark.parametrize("expected", ROWS, ids=lambda row: row.variable)
def test_html_says_the_same(opened, expected):
    page = html.unescape(opened.gpuzarr.explain()._repr_html_())

    for part in (expected.variable, expected.where, expected.why, expected.codecs, ", ".join(expected.dims)):
        assert part in page
    assert "color" not in page


def test_selection_is_explained_by_its_stored_array(opened):
    row = by_name(opened.isel(time=slice(3)).gpuzarr.explain())["packed"]

    assert (row.shape, row.n_shards, row.decoded_nbytes) == ((3, 6, 8), 2, 1152)
    assert row.why == "selected or computed from a stored array of shape (48, 6, 8)"


JOINED = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
OURS = {"engine": "gpuzarr", "device": "host"}


@pytest.mark.parametrize(
    "opening",
    [
        lambda paths: xr.open_mfdataset(paths, **OURS, **JOINED),
        lambda paths: xr.concat([xr.open_dataset(path, chunks={}, **OURS) for path in paths], "time", **JOINED),
    ],
    ids=["open_mfdataset", "concat"],
)
def test_what_comes_from_several_stores_is_explained(tmp_path, opening):
    paths = [tmp_path / f"{i}.zarr" for i in range(2)]
    for i, path in enumerate(paths):
        hours = {"time": np.arange(4) + 4 * i}
        xr.Dataset({"t": (("time", "x"), FIELD[0, :4]), "same": ("x", np.ones(8))}, hours).to_zarr(path)

    dataset = opening(paths)

    rows = by_name(dataset.gpuzarr.explain())

    assert dataset.gpuzarr.device == "host"
    assert rows.keys() == {"t", "same", "time"}
    assert (rows["t"].shape, rows["t"].chunk_shape, rows["t"].where) == ((8, 8), (4, 8), "host")
    assert rows["t"].why == "joined or computed from 2 stored arrays; this is the first, of shape (4, 8)"
    assert rows["same"].why == ""


def test_persisted_blocks_are_in_memory(kinds):
    persisted = xr.open_dataset(kinds, chunks={}, consolidated=False, **OURS).persist()

    explanation = persisted.gpuzarr.explain()
    row, derived = by_name(explanation)["packed"], by_name((persisted[["packed"]] + 1).gpuzarr.explain())["packed"]

    assert (row.where, row.why) == ("in memory", "persisted: blocks of a dask array that are read already")
    assert (derived.where, derived.why) == ("dask", "computed from blocks that are in memory")
    assert explanation.note == 'Nothing here is left to read by engine="gpuzarr".'


def test_blocks_that_workers_hold_are_in_memory(kinds):
    chunked = xr.open_dataset(kinds, chunks={}, consolidated=False, **OURS)
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
        row = by_name(chunked[["packed"]].persist().gpuzarr.explain())["packed"]

    assert (row.where, row.why[:10]) == ("in memory of dask's workers", "persisted:")


def test_other_engines_are_named_as_such(kinds):
    lazy = xr.open_dataset(kinds, engine="zarr", consolidated=False)
    chunked = xr.open_dataset(kinds, engine="zarr", consolidated=False, chunks={})

    assert by_name(lazy.gpuzarr.explain())["packed"].where == "host, by xarray"
    row = by_name(chunked.gpuzarr.explain())["packed"]
    assert (row.where, row.why) == ("dask", "not opened by this engine")
    assert lazy.gpuzarr.device is None
    assert 'Nothing here is read by engine="gpuzarr".' in str(lazy.gpuzarr.explain())


def test_array_explains_itself_and_its_coordinates(opened):
    explanation = opened.packed.gpuzarr.explain()

    assert explanation.rows[0] == ROWS[0]
    assert by_name(explanation).keys() == {"packed", "area", "y"}
    assert [row.variable for row in opened.y.gpuzarr.explain().rows] == ["y"]


@pytest.mark.parametrize("coordinate", ["array", "<unnamed array>"])
def test_an_array_without_a_name_hides_no_coordinate(opened, coordinate):
    explanation = opened.packed.rename(None).rename(area=coordinate).gpuzarr.explain()

    first, *others = [row.variable for row in explanation.rows]
    assert first == "<unnamed array>"
    assert sorted(others) == sorted([coordinate, "y"])


TREE_ROWS = {
    "/": ["packed", "y", "sub/seen", "sub/deep/rare"],
    "sub": ["seen", "deep/rare"],
    "sub/deep": ["rare"],
}
"""Path of a group -> names in the rows of the tree below it."""


@pytest.mark.parametrize(("path", "names"), TREE_ROWS.items())
def test_tree_explains_its_groups_by_names_that_index_it(opened, path, names):
    bare = opened.drop_vars("area")
    tree = xr.DataTree.from_dict({"/": bare[["packed"]], "/sub": bare[["seen"]], "/sub/deep": bare[["rare"]]})

    rows = tree[path].gpuzarr.explain().rows

    assert [row.variable for row in rows] == names
    assert [tree[path][row.variable].shape for row in rows] == [row.shape for row in rows]


def test_text_of_a_group_of_a_tree_names_variables_as_the_group_does(opened):
    tree = xr.DataTree.from_dict({"/sub": opened[["rare"]].drop_vars("area")})

    assert "  host, by zarr-python  rare" in str(tree["sub"].gpuzarr).splitlines()
    assert tree.gpuzarr.device == "host"


def test_device_of_nothing_is_none():
    assert xr.Dataset({"a": 1}).gpuzarr.device is None
    assert xr.DataArray([1]).gpuzarr.device is None


def test_to_host_leaves_host_arrays_as_they_are(opened):
    copied = opened.gpuzarr.to_host()

    assert opened.gpuzarr.device == "host"
    assert copied.gpuzarr.explain().rows == opened.gpuzarr.explain().rows
    xr.testing.assert_identical(copied, opened)


@pytest.fixture(params=[None, {}], ids=["lazy", "chunked"])
def on_device(kinds, strict_device, request):
    """The same variables, decoded into arrays that only `get` brings to the host."""
    return xr.open_dataset(kinds, engine="gpuzarr", consolidated=False, chunks=request.param)


@pytest.mark.parametrize(
    ("chunks", "shard", "load"),
    [
        ({}, 4, "a task has 4 chunks, and a GPU decodes some 528 at once: chunks={'x': 1056} would keep it busy"),
        ({"x": 1}, 4, "a task has 1 chunk, and a GPU decodes some 528 at once: chunks={'x': 1056} would"),
        ({"x": 528}, 4, "a task has 528 chunks, and a GPU decodes some 528 at once: chunks={'x': 1056}, or 2 threads,"),
        ({"x": 1056}, 4, ""),
        ({}, 1056, ""),
        (None, 4, ""),
    ],
)
def test_tasks_that_do_not_fill_a_gpu_are_told_of(monkeypatch, chunks, shard, load):
    monkeypatch.setattr(lazy_array, "decoder_for", lambda _device: CudaDecoder(SimulatedDevice))
    monkeypatch.setattr(open_options, "resolve_device", lambda _device: "cuda")
    store = MemoryStore()
    xr.Dataset({"t": ("x", np.zeros(1056, "i2"))}).to_zarr(
        store, encoding={"t": {"chunks": (1,), "shards": (shard,)}}, zarr_format=3, consolidated=False
    )

    explanation = xr.open_dataset(store, engine="gpuzarr", consolidated=False, chunks=chunks).gpuzarr.explain()

    assert explanation.rows[0].where == "cuda"
    assert explanation.rows[0].load.startswith(load) if load else explanation.rows[0].load == ""
    assert load[:12] in str(explanation)


def test_to_host_keeps_names_attributes_and_indexes_and_reads_nothing(on_device, kinds):
    sync(kinds.clear())

    copied = on_device.assign_attrs(title="any").gpuzarr.to_host()

    assert copied.attrs == {"title": "any"}
    assert list(copied.coords) == list(on_device.coords)
    assert copied.xindexes.keys() == on_device.xindexes.keys()
    assert copied.packed.encoding == on_device.packed.encoding


def test_copy_of_a_lazy_variable_can_be_selected_chunked_and_pickled(kinds, strict_device):
    dataset = xr.open_dataset(kinds, engine="gpuzarr", consolidated=False)
    array = dataset.isel(time=slice(None, None, -1)).packed.gpuzarr.to_host()
    points = {"time": xr.DataArray([40, 2]), "y": xr.DataArray([5, 0])}

    assert array.gpuzarr.device == "host"
    assert array.gpuzarr.explain().rows[0].where == "host, then copied to the host"
    assert_same_values(array.isel(points).values, FIELD[::-1][[40, 2], [5, 0]])
    assert type(array.chunk({}).data._meta) is np.ndarray
    assert_same_values(pickle.loads(pickle.dumps(array)).chunk(time=24).compute().data, FIELD[::-1])


def test_to_host_copies_arrays_in_memory(on_device):
    loaded = on_device.load()

    assert isinstance(loaded.packed.data, StrictArray)
    assert_same_values(loaded.gpuzarr.to_host().packed.data, FIELD)


def test_to_host_of_arrays_and_trees(on_device):
    tree = xr.DataTree.from_dict({"/sub": on_device[["packed"]]}, name="root")

    assert_same_values(on_device.packed.gpuzarr.to_host().compute().data, FIELD)
    assert_same_values(tree.gpuzarr.to_host()["sub/packed"].compute().data, FIELD)
    assert tree.gpuzarr.to_host().name == "root"


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1 kB"), (99_600, "99.6 kB"), (999_499, "999 kB"), (999_600, "1 MB")),
        *((89_243_576, "89.2 MB"), (3_280_000_000, "3.28 GB"), (5 * 10**18, "5000 PB")),
    ],
)
def test_bytes_are_written_with_three_digits(nbytes, expected):
    assert format_nbytes(nbytes) == expected


def test_accessor_shows_where_data_lands(opened):
    headline, *lines = repr(opened.gpuzarr).splitlines()

    assert headline == "<gpuzarr: 8 variables, 30.6 kB; this engine's are read to the host, as NumPy arrays>"
    places = dict(re.split("  +", line.strip()) for line in lines)
    assert {place: set(names.split(", ")) for place, names in places.items()} == {
        "host": {"packed", "area"},
        "host, by xarray": {"seen", "name", "y"},
        "host, by zarr-python": {"rare", "checked"},
        "in memory": {"loaded"},
    }


@pytest.mark.parametrize("chunks", [None, {}])
def test_attributes_are_repaired_and_decoded_again_on_the_host(kinds, chunks):
    """As docs/faq.md says; xarray's own decoding of a GPU's arrays asks them to become NumPy's."""
    array = zarr.open_group(kinds, mode="a")["packed"]
    array.attrs["scale_factor"] = "bad"
    with simulated_worker.installed():
        raw = xr.open_dataset(kinds, engine="gpuzarr", chunks=chunks, decode_cf=False, consolidated=False)
        assert raw.gpuzarr.device == "cuda"
        raw["packed"].attrs["scale_factor"] = 0.5
        with pytest.raises(TypeError, match="Implicit conversion"):
            xr.decode_cf(raw)["packed"].compute()

        repaired = xr.decode_cf(raw.gpuzarr.to_host())

        assert (repaired["packed"].chunks is None) == (chunks is None)
        np.testing.assert_array_equal(repaired["packed"].values, FIELD)
        np.testing.assert_array_equal(repaired["seen"].values, HOURS)
