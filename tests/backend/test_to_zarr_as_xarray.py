"""``ds.gpuzarr.to_zarr`` stores what xarray's own `to_zarr` stores with the same chunks, byte for byte."""

import datetime as dt
import threading
import warnings

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.random_datasets import Write
from helpers.every_pair import usually
from helpers.same_writes import compare, compare_writes
from zarr.codecs.numcodecs import BZ2
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.backend.accessor import whole_shards
from xarray_gpuzarr.backend.accessor.packing import pack_blocks
from xarray_gpuzarr.backend.accessor.value_check import ValueCheck
from xarray_gpuzarr.errors import GpuZarrWarning, OptionError
from xarray_gpuzarr.process import advice

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

N_SEEDS = 25
NOLEAP = xr.date_range("1850-01-01", periods=8, freq="MS", calendar="noleap", use_cftime=True)


@pytest.fixture(autouse=True)
def _in_tasks(monkeypatch):
    """Let arrays in memory that are larger than a shard be written in tasks, as those of more than 16 MiB are."""
    monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", 0)


@pytest.mark.parametrize("first", range(0, usually(200, full=3000), N_SEEDS))
def test_random_datasets(first, monkeypatch):
    for seed in range(first, first + N_SEEDS):
        monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", seed % 2 * 2**24)
        compare(seed)


def one(values, encoding=None, **attrs):
    """A dataset of one variable."""
    ds = xr.Dataset({"v": ("x", values, attrs)})
    ds.v.encoding = encoding or {}
    return ds


def with_links():
    ds = xr.Dataset({"v": (("y", "x"), np.ones((2, 2))), "crs": ((), 0)}, coords={"y": [0, 1]})
    ds.v.encoding = {"grid_mapping": "crs", "cell_measures": "area: a", "formula_terms": "a: b"}
    ds.y.encoding["bounds"] = "y_bounds"
    return ds


HOURS = np.arange(8) * np.timedelta64(3600, "s")
DATASETS = {
    "timedeltas in dask": lambda: one(da.from_array(HOURS.astype("m8[ns]") * 24, 4), {"units": "days", "dtype": "i8"}),
    "cftimes in dask": lambda: one(
        da.from_array(NOLEAP.values, 4), {"units": "days since 1850-01-01", "calendar": "noleap", "dtype": "int64"}
    ),
    "cftimes": lambda: one(NOLEAP.values, {"units": "days since 1700-01-01", "calendar": "noleap"}),
    "a fill value of Zarr": lambda: one(da.full(8, -9, chunks=4, dtype="i4"), {"fill_value": -9}),
    "links of CF": with_links,
    "integers that are scaled": lambda: one(
        da.arange(8, chunks=4, dtype="i4"), {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}
    ),
    "unsigned": lambda: one(np.arange(8, dtype="u1"), {"dtype": "int8", "_Unsigned": "true"}),
    "float32 by a scale of float64": lambda: one(
        da.linspace(0, 1, 8, chunks=4, dtype="f4"),
        {"dtype": "float64", "scale_factor": np.float64(0.03), "add_offset": 1e6},
    ),
    "float32 without a dtype": lambda: one(
        np.linspace(0, 1, 8, dtype="f4"), {"scale_factor": np.float64(0.5), "_FillValue": np.float32(-9)}
    ),
    "no compressors": lambda: one(np.arange(8), {"compressors": None, "write_empty_chunks": True}),
    "numbers of CF that are attributes": lambda: one(
        np.arange(8, dtype="i2"), {"dtype": "i4"}, scale_factor=0.01, add_offset="abc", _FillValue=-1
    ),
    "a scale in a list": lambda: one(da.linspace(0, 1, 8, chunks=4), {"scale_factor": np.array([0.5]), "dtype": "i2"}),
    "an offset for each element": lambda: one(np.arange(8.0), {"add_offset": np.arange(8.0), "dtype": "i2"}),
    "an offset for each element of dask": lambda: one(da.ones(8, chunks=1), {"add_offset": np.arange(8.0)}),
    "a scale in a list, without dask": lambda: one(np.arange(8.0), {"scale_factor": np.array([0.5])}),
    "an index that makes integers of floats": lambda: one(np.arange(8.0)).assign_coords(
        xr.Coordinates.from_xindex(xr.indexes.RangeIndex.arange(0, 8, 1, dim="x"))
    ),
    "numbers that are stored as text": lambda: one(np.arange(8), {"dtype": str, "shards": (4,)}),
    "float16": lambda: one(np.arange(8, dtype="f2") * 13.25, {"scale_factor": 0.01, "dtype": "i2", "_FillValue": -1}),
    "names with slashes": lambda: xr.Dataset({"v": ("x", np.arange(8.0)), "g/v": ("x", -np.arange(8.0))}),
    "text of a fixed length": lambda: one(np.array(["a", "bc"] * 4), {"dtype": str}),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", DATASETS)
def test_datasets_that_were_stored_differently(name, zarr_format):
    ds = DATASETS[name]()
    compare_writes([Write(ds, {"zarr_format": zarr_format}, {"x": 2}, {"x": 4})])


def test_a_multiindex_is_the_error_of_xarray_and_erases_nothing():
    store = MemoryStore()
    one([1.0]).gpuzarr.to_zarr(store)
    before = dict(store._store_dict)
    ds = xr.Dataset({"v": (("x", "y"), np.ones((2, 2)))}, {"x": [1, 2], "y": [1, 2]}).stack(z=("x", "y"))

    with pytest.raises(NotImplementedError, match="variable 'z' is a MultiIndex"):
        ds.gpuzarr.to_zarr(store, mode="w")

    assert store._store_dict == before


@pytest.mark.parametrize(
    ("values", "change", "outcome"),
    [
        (np.arange(8.0), {"chunks": 4, "shards": None}, "same"),
        (da.arange(8, chunks=3), {"chunks": 4, "shards": None}, "same"),
        (np.arange(8.0), {"chunks": (-1,), "shards": None}, "same"),
        (np.arange(8.0), {"chunks": (0,), "shards": None}, "error 0"),
        (np.arange(8.0), {"shards": 8}, "same"),
        (np.array(list("12345678")), {"dtype": "f8"}, "same"),
        (np.arange(8).astype(object), {"scale_factor": 0.5}, "same"),
        (np.arange(8).astype(object), {"calendar": "noleap"}, "error 0"),
        (np.array(["a", "b"] * 4, object), {"units": "days since 2000-01-01"}, "error 0"),
        (NOLEAP.values, {"units": "days since 1800-01-01"}, "same"),
    ],
    ids=str,
)
def test_entries_of_an_encoding_that_are_changed(values, change, outcome):
    write = Write(one(values), {"zarr_format": 3, "encoding": {"v": change}}, {"x": 2}, {"x": 4})
    assert compare_writes([write]) == outcome


def test_xarray_checks_the_chunks_of_dask_that_a_dataset_has_if_it_is_asked_to():
    store, options = MemoryStore(), {"region": {"x": slice(2, 14)}, "safe_chunks": True}
    one(np.zeros(16)).gpuzarr.to_zarr(store, {"x": 2}, {"x": 4})

    one(np.ones(12)).gpuzarr.to_zarr(store, **options)
    for write in (one(da.ones(12, chunks=4)).to_zarr, one(da.ones(12, chunks=4)).gpuzarr.to_zarr):
        with pytest.raises(ValueError, match="chunks"):
            write(store, **options)

    assert zarr.open_array(store, path="v")[:].tolist() == [0] * 2 + [1] * 12 + [0] * 2


def test_sizes_may_name_a_dimension_of_which_a_region_writes_nothing():
    first = xr.Dataset({"v": ("t", np.arange(4.0))}, {"x": [0, 1, 2], "t": [0, 1, 2, 3]})
    part = -first.isel(t=slice(1, 3))
    sizes = {"t": 2, "x": 2}, {"t": 4, "x": 4}
    assert compare_writes([Write(first, {"zarr_format": 3}, *sizes), Write(part, {"region": "auto"}, *sizes)]) == "same"


@pytest.mark.parametrize("options", [{"append_dim": "x"}, {"region": {"x": slice(8)}}, {"mode": "r+"}], ids=str)
def test_chunks_of_several_lengths_are_refused_as_by_xarray(options):
    store = MemoryStore()
    with zarr.config.set({"array.rectilinear_chunks": True}):
        zarr.open_group(store).create_array("v", shape=(8,), chunks=[[3, 5]], dtype="f8", dimension_names=["x"])
        for write in (one(np.arange(8.0)).to_zarr, one(np.arange(8.0)).gpuzarr.to_zarr):
            with pytest.raises(TypeError, match="rectilinear"):
                write(store, **options)


def test_names_of_one_path_are_refused():
    ds = xr.Dataset({"v": ("x", np.arange(8)), "v/": ("x", da.arange(8.0, chunks=8))})
    for write in (ds.to_zarr, ds.gpuzarr.to_zarr):
        with pytest.raises(ValueError, match="v"):
            write(MemoryStore())


@pytest.mark.parametrize("options", [{"mode": "r+"}, {"append_dim": "t"}, {"region": {"t": slice(8)}}], ids=str)
@pytest.mark.parametrize("encoding", [{}, {"dtype": "i2", "scale_factor": 0.5}], ids=str)
@pytest.mark.parametrize("chunks", [None, {"t": 4, "x": 4}, {"t": 8, "x": 4}], ids=str)
def test_dimensions_in_another_order_than_stored(options, encoding, chunks):
    values = np.arange(64.0).reshape(8, 8)
    first, other = (xr.Dataset({"v": (dims, values)}) for dims in (("t", "x"), ("x", "t")))
    first.v.encoding = encoding
    sizes = {"t": 2, "x": 2}, {"t": 4, "x": 4}
    writes = [
        Write(first, {"zarr_format": 3}, *sizes),
        Write(other.chunk(chunks) if chunks else other, options, *sizes),
    ]
    assert compare_writes(writes) == "same"


@pytest.mark.parametrize("engine", ["zarr", "gpuzarr"])
@pytest.mark.parametrize("moved", [slice(None, None, -1), slice(4, None)], ids=str)
def test_a_lazy_dataset_that_is_written_to_where_it_is_read(tmp_path, engine, moved):
    one(np.arange(12.0)).gpuzarr.to_zarr(tmp_path, {"x": 2}, {"x": 4})
    part = xr.open_dataset(tmp_path, engine=engine, chunks=None).isel(x=moved)
    expected = part.v.values.copy()

    xr.open_dataset(tmp_path, engine=engine, chunks=None).isel(x=moved).gpuzarr.to_zarr(
        tmp_path, region={"x": slice(len(expected))}
    )

    np.testing.assert_array_equal(zarr.open_array(tmp_path / "v")[: len(expected)], expected)


def test_a_dimension_without_an_index_is_not_loaded():
    labels = da.map_blocks(lambda: pytest.fail("loaded"), chunks=((4, 4),), dtype="f8", meta=np.zeros(0))
    ds = one(np.arange(8)).assign_coords(xr.Coordinates({"x": ("x", labels)}, indexes={}))

    ds.gpuzarr.to_zarr(MemoryStore(), {"x": 2}, {"x": 4}, compute=False)


def test_what_is_in_memory_is_written_before_it_is_computed():
    values = np.arange(48.0).reshape(8, 6)
    ds = xr.Dataset({"v": (("t", "x"), values)}).chunk(t=4).assign_coords(area=(("t", "x"), values))
    store = MemoryStore()

    tasks = ds.gpuzarr.to_zarr(store, {"t": 2, "x": 2}, {"t": 4, "x": 4}, compute=False, rechunk=True)

    np.testing.assert_array_equal(zarr.open_array(store, path="area")[...], values)
    assert np.isnan(zarr.open_array(store, path="v")[...]).all()
    tasks.compute()
    np.testing.assert_array_equal(zarr.open_array(store, path="v")[...], values)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False, None])
def test_appends_after_appends_by_others(zarr_format, consolidated):
    store = MemoryStore()
    ds = one(np.arange(3.0)).assign_coords(x=[0, 1, 2])
    ds.gpuzarr.to_zarr(store, {"x": 2}, {"x": 4}, zarr_format=zarr_format)
    ds.gpuzarr.to_zarr(store, append_dim="x", consolidated=consolidated)
    for name in "vx":
        zarr.open_array(store, path=name).append(np.array([7, 8], ds[name].dtype))

    ds.gpuzarr.to_zarr(store, append_dim="x", consolidated=consolidated)

    expected = [0, 1, 2, 0, 1, 2, 7, 8, 0, 1, 2]
    assert [zarr.open_array(store, path=name)[:].tolist() for name in "vx"] == [expected, expected]


def test_a_variable_that_consolidated_metadata_lack_is_written_over():
    store = MemoryStore()
    one(np.zeros(4)).gpuzarr.to_zarr(store, {"x": 2}, None)
    zarr.open_group(store).create_array("w", shape=4, chunks=2, dtype="f8", dimension_names=["x"])

    one(np.ones(4)).rename(v="w").gpuzarr.to_zarr(store, mode="a")

    assert zarr.open_array(store, path="w")[:].tolist() == [1] * 4


@pytest.mark.parametrize("make", [np.asarray, lambda values: da.from_array(values, 2)], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([0, 1, 40_000.0, 2], {"dtype": "int16"}),
        ([0, 1, -400.0, 2], {"dtype": "int16", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -1}),
        ([0, np.nan, 1, 2], {"dtype": "int16"}),
        ([0, np.inf, 1, 2], {"dtype": "int16", "_FillValue": -1}),
        ([0, 1e6, 1, 2], {"dtype": "float16"}),
        ([0, 1, 300, 2], {"dtype": "uint8"}),
        ([0.0, 1, 2, 3], {"dtype": "int16", "scale_factor": 0.0}),
        ([0, 1, np.nan, 2], {"dtype": "bool"}),
        ([0, 1, np.nan, 2], {"dtype": "int64", "_FillValue": 2**63 - 1}),  # as a float, it is 2 ** 63
        ([0, 1, 300, 2], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}),
        ([0, 1, -1, 2], {"dtype": "i1", "_Unsigned": "true", "_FillValue": -128}),
        ([0, 1, 2.551, 2], {"dtype": "u1", "scale_factor": 0.01, "_FillValue": 255}),
        ([0, -100, 100, 1.003], {"dtype": "int16", "scale_factor": 0.01, "_FillValue": 100}),
        ([0, 98.7, 100, 1], {"dtype": "int16", "_FillValue": 99}),
    ],
    ids=str,
)
def test_values_that_do_not_fit_the_stored_dtype_are_an_error(make, values, encoding):
    ds = one(make(np.array(values)), encoding)
    with pytest.raises(OptionError, match="values of variable 'v' do not fit the dtype"):
        ds.gpuzarr.to_zarr(MemoryStore(), {"x": 2}, None, rechunk=True)


@pytest.mark.parametrize("make", [np.asarray, lambda values: da.from_array(values, 2)], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    ("values", "encoding", "stored"),
    [
        ([99.0, 98, np.nan, 100], {"dtype": "int16", "_FillValue": 99}, [99, 98, 99, 100]),
        ([254, 127, 128, 0], {"dtype": "i1", "_Unsigned": "true", "_FillValue": np.int8(-1)}, [-2, 127, -128, 0]),
        ([0, 1.5, 1e-50, 3], {"dtype": "f4", "scale_factor": 1e5}, [0, 1.5e-5, 0, 3e-5]),
        ([-3.27, np.nan, 0, 3], {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -328}, [-327, -328, 0, 300]),
    ],
    ids=str,
)
def test_values_that_fit_or_that_are_the_fill_value_itself_are_stored(make, values, encoding, stored):
    store = MemoryStore()

    one(make(np.array(values)), encoding).gpuzarr.to_zarr(store, {"x": 2}, None, rechunk=True)

    np.testing.assert_allclose(zarr.open_array(store, path="v")[:], stored, rtol=1e-6)


CHANGES = {
    "a chunk that is split": lambda array: array.rechunk(16).rechunk(8),
    "chunks of other lengths": lambda array: array.rechunk(6).rechunk(8),
    "a shift": lambda array: da.roll(array, 1, 0),
    "a slice": lambda array: array[3:].rechunk(8),
    "numbers added": lambda array: array + np.zeros(16),
    "numbers chosen": lambda array: da.where(np.ones(16, bool), array, 0.0),
    "an overlap": lambda array: da.overlap.overlap(array, 1, "reflect").rechunk(8),
}


@pytest.mark.parametrize("bad", [400.0, np.nan])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_values_are_checked_whatever_dask_has_done_to_them(change, bad):
    values = np.zeros(16)
    values[5] = bad
    ds = one(change(da.from_array(values, 8)), {"dtype": "int16", "scale_factor": 0.01, "add_offset": 1.0})

    with pytest.raises(OptionError, match="values of variable 'v' do not fit the dtype"):
        ds.gpuzarr.to_zarr(MemoryStore(), {"x": 4}, {"x": 8}, rechunk=True)


def test_values_are_checked_where_blocks_cannot_be_packed_in_slabs():
    values = da.from_array(np.array([0.0, 1.0, 400.0, 2.0]), 2)
    packed = (values * 100 + da.zeros(4, chunks=2)).astype("i2")  # which has a second input
    check = ValueCheck.of("v", np.dtype("i2"), {"scale_factor": 0.01})

    misfit = r"400.0, which has to be stored as 40000, but only -32768 to 32767 fit, at \(2,\)"
    with pytest.raises(OptionError, match=misfit):
        pack_blocks(packed, values, None, check).compute()
    assert pack_blocks(packed[:2], values[:2], None, check).compute().tolist() == [0, 100]


@pytest.mark.parametrize("options", [{"mode": "w"}, {"append_dim": "x"}, {"region": {"x": slice(4)}}], ids=str)
def test_values_in_memory_that_do_not_fit_leave_what_is_stored(options):
    store = MemoryStore()
    ds = xr.Dataset({"first": ("x", np.zeros(4)), "second": ("x", np.zeros(4))})
    ds.second.encoding = {"dtype": "int16", "scale_factor": 0.01}
    ds.gpuzarr.to_zarr(store, {"x": 2}, None)
    before = dict(store._store_dict)
    bad = ds + 400.0
    bad.second.encoding = ds.second.encoding

    with pytest.raises(OptionError, match="values of variable 'second' do not fit the dtype"):
        bad.gpuzarr.to_zarr(store, {"x": 2}, None, **options)

    assert store._store_dict == before


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (np.array(["2023-01-01"], "M8[ns]"), np.array(["2023-01-01T06"], "M8[ns]")),
        (np.array(["2023-01-01", "2023-01-02"], "M8[ns]"), np.array(["2023-01-03T00:30"], "M8[ns]")),
        (np.array([24], "m8[h]").astype("m8[ns]"), np.array([25], "m8[h]").astype("m8[ns]")),
        (NOLEAP.values[:2], NOLEAP.values[2:3] + dt.timedelta(hours=6)),
        (np.array([24.0]), np.array(["2023-01-01"], "M8[ns]")),
    ],
    ids=["hours after days", "minutes after days", "durations", "dates of cftime", "times after numbers"],
)
def test_times_that_need_finer_units_than_those_of_the_store_are_an_error(first, more):
    store = MemoryStore()
    one(first).gpuzarr.to_zarr(store, {"x": 2}, None)
    before = dict(store._store_dict)

    with pytest.raises(OptionError, match="times of variable 'v' do not fit the units"):
        one(more).gpuzarr.to_zarr(store, append_dim="x")

    assert store._store_dict == before


def test_the_units_that_are_advised_are_those_that_the_times_need():
    store = MemoryStore()
    one(np.array(["2023-01-01T00:00:01"], "M8[ns]")).gpuzarr.to_zarr(store, {"x": 2}, None)

    with pytest.raises(OptionError, match=r"do: .*'units': 'milliseconds since 2023-01-01"):
        one(np.array(["2023-01-01T00:00:01.5"], "M8[ns]")).gpuzarr.to_zarr(store, append_dim="x")


def test_times_that_fit_the_units_of_the_store_are_appended():
    store = MemoryStore()
    times = np.array(["2023-01-01", "2023-01-03", "2023-02-01", "NaT"], "M8[ns]")
    one(times[:2]).gpuzarr.to_zarr(store, {"x": 2}, None)
    one(times[2:]).gpuzarr.to_zarr(store, append_dim="x")

    np.testing.assert_array_equal(xr.open_zarr(store).v.values, times)


def test_what_cannot_be_encoded_leaves_what_is_stored():
    store = MemoryStore()
    one(np.arange(4)).to_zarr(store)
    before = dict(store._store_dict)

    with pytest.raises(TypeError):
        one(np.arange(4), {"scale_factor": 0.5, "dtype": "i2", "_FillValue": -1}).gpuzarr.to_zarr(
            store, {"x": 2}, None, mode="w"
        )

    assert store._store_dict == before


def test_threads_that_write_parts_of_a_shard_lose_nothing_and_change_no_setting(tmp_path):
    one(da.zeros(64, chunks=64, dtype="i4")).gpuzarr.to_zarr(tmp_path, {"x": 4}, {"x": 64})
    before, seen = dict(zarr.config.get("codec_pipeline")), []

    def write(number):
        start = 8 * number
        one(np.full(8, number + 1, "i4")).gpuzarr.to_zarr(tmp_path, region={"x": slice(start, start + 8)})
        seen.append(dict(zarr.config.get("codec_pipeline")))

    for _ in range(3):
        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert zarr.open_array(tmp_path / "v")[:].tolist() == np.repeat(np.arange(1, 9), 8).tolist()
    assert all(each == before for each in seen)


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (np.array(list("abcdefgh"), object), {}),
        (da.from_array(np.array(list("abcdefgh"), object), 4), {}),
        (np.arange(8.0), {"compressors": (BZ2(level=1),)}),
    ],
    ids=["text", "text in dask", "an unknown codec"],
)
def test_what_is_left_to_zarr_python_is_written_while_its_pipeline_is_this_one(values, encoding):
    store = MemoryStore()
    with zarr_pipeline():
        one(values, encoding).gpuzarr.to_zarr(store, {"x": 8}, None)
        one(values[:3]).gpuzarr.to_zarr(store, region={"x": slice(5, 8)}, rechunk=True)

    expected = [*np.asarray(values)[:5], *np.asarray(values)[:3]]
    assert zarr.open_array(store, path="v")[:].tolist() == expected


@pytest.mark.parametrize("kind", [str, object], ids=["text of a fixed length", "text"])
def test_threads_that_write_parts_of_a_chunk_of_text_through_two_doors_lose_nothing(tmp_path, kind):
    expected = np.array([f"text {number}" for number in range(64)], kind)
    one(np.full(64, " " * 7).astype(kind), {"chunks": (64,)}).gpuzarr.to_zarr(tmp_path)

    def by_accessor(part):
        one(expected[part]).gpuzarr.to_zarr(tmp_path, region={"x": part})

    def by_pipeline(part):
        with zarr_pipeline():
            array = zarr.open_array(tmp_path / "v")
        array[part] = expected[part]

    doors = [by_accessor, by_pipeline] * 4
    threads = [
        threading.Thread(target=door, args=(slice(8 * n, 8 * n + 8),), daemon=True) for n, door in enumerate(doors)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert zarr.open_array(tmp_path / "v")[:].tolist() == expected.tolist()


def test_coordinates_have_one_chunk_for_each_shard():
    store = MemoryStore()
    ds = xr.Dataset({"v": (("time", "x"), np.ones((24, 4)))}, coords={"time": np.arange(24), "x": np.arange(4)})

    ds.gpuzarr.to_zarr(store, {"time": 1}, {"time": 12})
    with warnings.catch_warnings():
        warnings.simplefilter("error", GpuZarrWarning)
        more = ds.assign_coords(time=ds.time + 24)
        more.gpuzarr.to_zarr(store, {"time": 1}, {"time": 12}, append_dim="time")

    found = {name: (array.chunks, array.shards) for name, array in zarr.open_group(store).arrays()}
    assert found == {"v": ((1, 4), (12, 4)), "time": ((12,), None), "x": ((4,), None)}
    assert xr.open_zarr(store).time.values.tolist() == [*range(48)]


def test_sizes_are_those_of_the_store_so_that_an_archive_grows_in_its_shards(tmp_path):
    month = xr.Dataset({"v": (("month", "x"), np.ones((1, 4)))})
    month.gpuzarr.to_zarr(tmp_path, {"month": 1}, {"month": 12})
    for _ in range(13):
        month.gpuzarr.to_zarr(tmp_path, append_dim="month")

    with pytest.warns(GpuZarrWarning) as warned:
        month.gpuzarr.to_zarr(tmp_path, {"month": 2}, {"month": 6}, append_dim="month")

    array = zarr.open_array(tmp_path / "v")
    assert (array.shape, array.chunks, array.shards) == ((15, 4), (1, 4), (12, 4))
    assert len(list((tmp_path / "v/c").iterdir())) == 2
    ignored = (
        "chunks of 2 along 'month' and shards of 6 along 'month' are ignored for variables that are stored already: 'v'"
    )
    ours = [warning for warning in warned if warning.category is GpuZarrWarning]
    assert [str(warning.message).split("\n")[0] for warning in ours] == [ignored]
    assert "found: chunks of 1 along 'month' and shards of 12 along 'month' in the store" in str(ours[0].message)


CODEC_TEXTS = {
    "zstd": "zstd (level 3)",
    "blosc": "blosc (cname zstd, clevel 3)",
    "gzip": "gzip (level 5)",
    "none": "no compressor",
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("stored", CODEC_TEXTS)
def test_compressors_of_an_append_that_the_store_does_not_have_are_warned_of(tmp_path, stored, zarr_format):
    ds = xr.Dataset({"v": ("t", np.arange(4)), "w": ("t", np.arange(4.0))})
    ds.gpuzarr.to_zarr(tmp_path, compressors=stored, zarr_format=zarr_format, consolidated=False)

    for given in CODEC_TEXTS:
        advice.warned.clear()
        with warnings.catch_warnings(record=True, action="always") as caught:
            ds.gpuzarr.to_zarr(tmp_path, append_dim="t", compressors=given, consolidated=False)

        told = [str(warning.message).split("\n")[:2] for warning in caught if warning.category is GpuZarrWarning]
        ignored = "compressors are ignored for variables that are stored already: 'v', 'w'"
        found = f"  found: {CODEC_TEXTS[stored]} in the store for 'v'"
        assert told == ([] if given == stored else [[ignored, found]])
    assert xr.open_zarr(tmp_path, consolidated=False).w.size == 20


def stored_twice(store, group=None):
    one(np.arange(64.0)).gpuzarr.to_zarr(store, {"x": 4}, {"x": 16}, group=group, consolidated=False)
    return store


OPENED = {
    "lazy": lambda ds: ds,
    "dask": lambda ds: ds.chunk(x=16),
    "computed": lambda ds: ds.chunk(x=16) + 1,
    "selected": lambda ds: ds.isel(x=slice(16, 48)),
}


@pytest.mark.parametrize("engine", ["gpuzarr", "zarr"])
@pytest.mark.parametrize("kind", [str, LocalStore, MemoryStore])
@pytest.mark.parametrize("change", OPENED.values(), ids=OPENED)
def test_a_dataset_that_is_read_from_the_store_that_would_be_erased_is_an_error(tmp_path, kind, change, engine):
    store = stored_twice(MemoryStore() if kind is MemoryStore else kind(tmp_path / "a.zarr"))
    stored_twice(store, "inner")
    options = {"engine": engine, "consolidated": False}
    ds, inner = (change(xr.open_dataset(store, group=group, **options)) for group in (None, "inner"))

    for dataset in (ds, inner):
        with pytest.raises(OptionError, match="is read from the store that mode='w' erases"):
            dataset.gpuzarr.to_zarr(store, {"x": 4}, {"x": 16}, mode="w", consolidated=False)
    expected = ds.compute()
    ds.gpuzarr.to_zarr(store, {"x": 4}, {"x": 16}, mode="w", group="inner", consolidated=False)

    xr.testing.assert_identical(xr.open_dataset(store, group="inner", **options).load().drop_attrs(), expected)
    ds.load().gpuzarr.to_zarr(store, {"x": 4}, {"x": 16}, mode="w", consolidated=False)
    xr.testing.assert_identical(xr.open_dataset(store, **options).load(), expected)


def test_a_dask_array_that_is_read_from_the_store_that_would_be_erased_is_an_error(tmp_path):
    stored_twice(tmp_path / "a.zarr")
    ds = one(da.from_zarr(tmp_path / "a.zarr" / "v") + 1)

    with pytest.raises(OptionError, match="is read from the store that mode='w' erases"):
        ds.gpuzarr.to_zarr(tmp_path / "a.zarr", {"x": 16}, None, mode="w")


def archive(n_times, first=0):
    values = np.arange(n_times * 4.0).reshape(n_times, 4)
    return xr.Dataset(
        {"u": (("time", "x"), values), "v": (("time", "x"), values + 1)},
        coords={"time": np.arange(first, first + n_times)},
    )


def test_an_append_to_arrays_of_different_lengths_is_an_error_that_changes_nothing(tmp_path):
    archive(4).gpuzarr.to_zarr(tmp_path, {"time": 1}, {"time": 4}, consolidated=False)
    array = zarr.open_array(tmp_path / "u", mode="r+")
    array.resize((6, 4))  # as a process does that is killed while arrays grow

    with pytest.raises(OptionError, match=r"(?s)4 in .*'v'.*6 in 'u'.*resize"):
        archive(2, 4).gpuzarr.to_zarr(tmp_path, append_dim="time", consolidated=False)

    assert zarr.open_array(tmp_path / "v").shape == (4, 4)
    array.resize((4, 4))
    archive(2, 4).gpuzarr.to_zarr(tmp_path, append_dim="time", consolidated=False)
    xr.testing.assert_equal(xr.open_zarr(tmp_path, consolidated=False), xr.concat([archive(4), archive(2, 4)], "time"))


def test_an_append_of_a_variable_that_the_store_lacks_is_an_error(tmp_path):
    archive(4).gpuzarr.to_zarr(tmp_path, consolidated=False)
    more = archive(2, 4)

    with pytest.raises(OptionError, match=r"none in 'w'; 4 in "):
        more.assign(w=more.u * 2).gpuzarr.to_zarr(tmp_path, append_dim="time", consolidated=False)

    more.assign(height=("x", np.arange(4.0))).gpuzarr.to_zarr(tmp_path, append_dim="time", consolidated=False)
    assert xr.open_zarr(tmp_path, consolidated=False).sizes["time"] == 6


@pytest.mark.parametrize(("stored", "written"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_codecs_of_the_other_format_are_left_out(tmp_path, stored, written, chunks):
    source = archive(4).assign(name=("x", np.array(["a", "bb", "", "d"], "S2")))
    source.to_zarr(tmp_path / "source", zarr_format=stored, consolidated=False)
    read = xr.open_dataset(tmp_path / "source", engine="zarr", consolidated=False, chunks=chunks)

    read.gpuzarr.to_zarr(tmp_path / "copy", rechunk=True, mode="w", zarr_format=written, consolidated=False)

    xr.testing.assert_identical(xr.open_zarr(tmp_path / "copy", consolidated=False).load(), read.load())
    assert zarr.open_array(tmp_path / "copy/u").metadata.zarr_format == written


def test_object_text_of_format_2_is_written_in_format_3(tmp_path):
    text = xr.Dataset({"name": ("x", np.array(["a", "bb", ""], object))})
    text.to_zarr(tmp_path / "source", zarr_format=2, consolidated=False)
    read = xr.open_dataset(tmp_path / "source", engine="zarr", consolidated=False)

    read.gpuzarr.to_zarr(tmp_path / "copy", consolidated=False)

    assert xr.open_zarr(tmp_path / "copy", consolidated=False).name.values.tolist() == ["a", "bb", ""]


@pytest.mark.parametrize("first", ["2024-01-01T12:00", "2024-01-01T00:30"])
def test_times_in_dask_chunks_that_have_no_code_for_1970_are_written(tmp_path, first):
    step = np.timedelta64(24 if first.endswith("12:00") else 1, "h")
    times = np.datetime64(first, "ns") + np.arange(10) * step
    later_times = times + 10 * step
    ds = xr.Dataset({"ref": ("time", times), "x": ("time", np.zeros(10))}, coords={"time": times})
    ds.gpuzarr.to_zarr(tmp_path / "a", consolidated=False)
    read = xr.open_dataset(tmp_path / "a", engine="gpuzarr", chunks={}, consolidated=False)

    read.gpuzarr.to_zarr(tmp_path / "b", consolidated=False)
    later = ds.assign_coords(time=later_times).assign(ref=("time", later_times)).chunk()
    later.gpuzarr.to_zarr(tmp_path / "b", append_dim="time", rechunk=True, consolidated=False)

    found = xr.open_zarr(tmp_path / "b", consolidated=False)
    xr.testing.assert_equal(found.load(), xr.concat([ds, later.load()], "time"))


def test_packed_values_that_were_never_written_are_missing_if_the_fill_value_says_so(tmp_path):
    packed = one(np.arange(4.0), {"dtype": "i2", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -99})
    for name, more in (("as xarray", {}), ("filled", {"fill_value": -99})):
        ds = packed.copy()
        ds.v.encoding = {**packed.v.encoding, **more}
        ds.gpuzarr.to_zarr(tmp_path / name, {"x": 1}, {"x": 4}, consolidated=False)
        zarr.open_array(tmp_path / name / "v", mode="r+").resize((6,))

    found = {path: xr.open_zarr(tmp_path / path, consolidated=False).v[4:].values for path in ("as xarray", "filled")}

    assert found["as xarray"].tolist() == [270.0, 270.0]
    assert np.isnan(found["filled"]).all()


def test_an_append_to_a_folder_that_does_not_exist_makes_none(tmp_path):
    with pytest.raises(OptionError, match=r"(?s)no store to append to.*no such folder"):
        archive(2).gpuzarr.to_zarr(tmp_path / "none", append_dim="time")

    assert not (tmp_path / "none").exists()
    archive(2).gpuzarr.to_zarr(tmp_path / "none", consolidated=False)


def test_a_path_in_the_home_folder_is_the_folder_that_xarray_writes_to(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    archive(2).gpuzarr.to_zarr("~/a", consolidated=False)
    archive(2, 2).gpuzarr.to_zarr("~/a", append_dim="time", consolidated=False)

    unread = xr.open_dataset(tmp_path / "a", engine="gpuzarr", consolidated=False)
    with pytest.raises(OptionError, match="the store that mode='w' erases"):
        unread.gpuzarr.to_zarr("~/a", mode="w")
    assert unread.sizes["time"] == 4
    assert unread.u.load().notnull().all()


def test_an_append_through_a_chain_of_fsspec_is_left_to_xarray(tmp_path):
    ended = []
    for write in (archive(2).to_zarr, archive(2).gpuzarr.to_zarr):
        with pytest.raises(ValueError, match="asynchronous") as caught:  # fsspec cannot write through this one
            write(f"dir::{tmp_path}", append_dim="time", consolidated=False)
        ended.append(str(caught.value))
    assert ended[0] == ended[1]


SECONDS = {"units": "seconds since 1970-01-01", "dtype": "int32"}
DAYS = {"units": "days since 2000-01-01", "dtype": "int64"}
OVERFLOWING = {
    "times": (np.array(["2037-12-31", "NaT", "2038-03-01"], "M8[ns]"), {**SECONDS, "_FillValue": -1}),
    "durations": (np.array([0, 300, 1], "m8[h]").astype("m8[ns]"), {"units": "hours", "dtype": "int8"}),
    "dates of cftime": (NOLEAP.values[:3], {"units": "seconds since 1850-01-01", "calendar": "noleap", "dtype": "i2"}),
    "times in another calendar": (
        np.array(["1970-01-01", "2100-01-01", "2000-01-01"], "M8[ns]"),
        {**SECONDS, "calendar": "noleap"},
    ),
    "NaT": (np.array(["2000-01-01", "NaT", "2001-01-01"], "M8[ns]"), {**DAYS, "dtype": "int32"}),
    "a time that is the fill value": (
        np.array(["2000-01-02", "2000-01-01", "1999-01-01"], "M8[ns]"),
        {**DAYS, "_FillValue": 0},
    ),
    "literal times": (np.array(["2000-01-02", "2000-01-03", "2000-01-04"], "M8[s]"), {**DAYS, "dtype": "M8[s]"}),
    "literal durations": (np.array([0, 86400, 172800], "m8[s]"), {"dtype": "m8[s]", "units": "days"}),
}


@pytest.mark.parametrize("chunks", [None, {"x": 3}])
@pytest.mark.parametrize("kind", OVERFLOWING)
def test_times_that_overflow_the_stored_dtype_are_an_error_before_anything_is_erased(tmp_path, kind, chunks):
    values, encoding = OVERFLOWING[kind]
    ds = xr.Dataset({"v": ("x", values, {}, encoding)})
    fitting = xr.Dataset({"v": ("x", [1.0])})
    fitting.gpuzarr.to_zarr(tmp_path / "a", {"x": 1}, None, consolidated=False)

    with pytest.raises(OptionError, match="times of variable 'v' do not fit the dtype"):
        ds.chunk(chunks or {}).gpuzarr.to_zarr(tmp_path / "b", {"x": 3}, None)
    if chunks is None:
        with pytest.raises(OptionError, match="times of variable 'v' do not fit the dtype"):
            ds.gpuzarr.to_zarr(tmp_path / "a", {"x": 3}, None, mode="w")

    xr.testing.assert_identical(xr.open_zarr(tmp_path / "a", consolidated=False).load(), fitting)
    ds.gpuzarr.to_zarr(tmp_path / "c", {"x": 3}, None, check_values=False)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("chunks", [None, 2])
def test_times_in_units_finer_than_their_own_are_an_error_since_xarray_stores_none_of_them(chunks, dtype):
    times = np.array(["2000-01-01", "2000-01-02"], "M8[s]")
    encoding = {"units": "milliseconds since 1970-01-01", "dtype": dtype}
    values = times if chunks is None else da.from_array(times, chunks)

    with pytest.raises(OptionError, match=r"convert these to datetime64\[ns\]"):
        one(values, encoding).gpuzarr.to_zarr(MemoryStore(), {"x": 2}, None)

    store = MemoryStore()
    one(values.astype("M8[ns]"), encoding).gpuzarr.to_zarr(store, {"x": 2}, None)
    np.testing.assert_array_equal(xr.open_zarr(store).v.values, times)


@pytest.mark.parametrize("fill", [{}, {"_FillValue": np.int8(-5)}])
def test_unsigned_numbers_are_refused_where_their_attribute_is_not_stored(tmp_path, fill):
    ds = xr.Dataset({"v": ("x", np.array([0, 127, 128, 255], "u1"), {}, {"dtype": "i1", "_Unsigned": "true", **fill})})
    if not fill:
        with pytest.raises(OptionError, match=r"255.0, which has to be stored as 255, but only -128 to 127 fit"):
            ds.gpuzarr.to_zarr(tmp_path / "a")
        return
    ds.gpuzarr.to_zarr(tmp_path / "a", consolidated=False)
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "a", consolidated=False).v, [0, 127, 128, 255])


def headlines(ds, *arguments, **options):
    """Write, and return the first lines of this package's warnings."""
    with warnings.catch_warnings(record=True, action="default") as warned:
        ds.gpuzarr.to_zarr(*arguments, **options, consolidated=False)
    return [str(w.message).split("\n")[0] for w in warned if w.category is GpuZarrWarning]


def tells_of_append(tmp_path, more):
    """Append to an archive of two times, and return the first lines of this package's warnings."""
    archive(2).gpuzarr.to_zarr(tmp_path / "a", consolidated=False, mode="w")
    return headlines(more, tmp_path / "a", append_dim="time")


def test_an_append_that_xarray_carries_out_but_nobody_means_is_a_warning_each_time(tmp_path):
    later = archive(2, 2)
    one_more = later.assign_coords(level=("level", [1.0, 2.0])).assign(w=("level", [0.0, 1.0]))

    assert tells_of_append(tmp_path, later) == []
    assert tells_of_append(tmp_path, one_more) == []
    for _ in range(2):
        (order,) = tells_of_append(tmp_path, archive(2, 1))
        (left_out,) = tells_of_append(tmp_path, later[["u"]])
        assert order == "after the append, the values of 'time' are neither increasing nor decreasing"
        assert left_out == "an append leaves out variables that have the dimension 'time'"

    others = [name for name in later.data_vars if name != "u"]
    if others:  # what was left out is appended alone
        assert headlines(later[others].drop_vars("time"), tmp_path / "a", append_dim="time") == []
        assert xr.open_zarr(tmp_path / "a", consolidated=False).sizes["time"] == 4


LEVELS = xr.Dataset(
    {
        "u": (("time", "y"), np.ones((2, 3))),
        "height": (("y", "x"), np.array([[0.12, np.nan], [3.3, 2.2], [7, 1e3]])),
        "name": ("y", ["a", "b", "cc"]),
        "run": ((), np.datetime64("2020-01-01", "ns")),
    },
    {"time": [0, 1], "y": [0.1, 0.2, 0.3], "calendar": ("y", NOLEAP.values[:3])},
)
STATIC = {"y": [0.1, 0.3, 0.2], "height": LEVELS.height.values.T.reshape(3, 2), "name": ["a", "b", "dd"]}


@pytest.mark.parametrize(
    "encoding", [{}, {"dtype": "f4"}, {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}], ids=str
)
def test_an_append_that_changes_what_lacks_the_dimension_is_a_warning(tmp_path, encoding, monkeypatch):
    monkeypatch.undo()  # variables in memory that are small are not cut into tasks
    LEVELS.gpuzarr.to_zarr(tmp_path / "a", consolidated=False, encoding={"y": encoding, "height": encoding})
    later = LEVELS.assign_coords(time=[2, 3])

    assert headlines(later, tmp_path / "a", append_dim="time") == []
    for name, values in STATIC.items():
        later["time"] = later.time + 2
        changed = later.assign({name: (later[name].dims, values)})
        (told,) = headlines(changed, tmp_path / "a", append_dim="time")
        assert told == f"an append overwrites {name!r} with other values, also for what is stored already"
        changed["time"] = changed.time + 2
        later["time"] = changed.time
        assert headlines(changed, tmp_path / "a", append_dim="time") == []  # it is stored by now
        later = changed


def test_a_region_whose_index_is_another_than_that_of_the_store_is_a_warning(tmp_path):
    archive(4).gpuzarr.to_zarr(tmp_path / "a", consolidated=False)
    part = archive(2, 1)

    assert headlines(part, tmp_path / "a", region={"time": "auto"}) == []
    assert headlines(part, tmp_path / "a", region={"time": slice(1, 3)}) == []
    assert headlines(part.drop_vars("time"), tmp_path / "a", region={"time": slice(2, 4)}) == []
    for _ in range(2):
        (told,) = headlines(part, tmp_path / "a", region={"time": slice(2, 4)})
        assert told == "a region in which the store has other values of 'time' than the dataset"


@pytest.mark.parametrize("unwritten", [np.nan, 0])
def test_a_region_of_a_template_whose_index_has_no_values_yet_is_no_warning(tmp_path, unwritten):
    template = xr.Dataset({"v": ("t", np.zeros(4))}, {"t": np.full(4, unwritten)})
    template.gpuzarr.to_zarr(tmp_path, consolidated=False)

    part = xr.Dataset({"v": ("t", [1.0, 2])}, {"t": [0, 1]})

    assert headlines(part, tmp_path, region={"t": slice(2, 4)}) == []


def test_dates_of_cftime_that_are_appended_twice_and_small_numbers_that_change_are_warnings(tmp_path):
    ds = one([1.0, 2.0]).assign_coords(x=NOLEAP[:2], y=("y", [1e-9, 2e-9]))
    ds.gpuzarr.to_zarr(tmp_path, consolidated=False)

    assert headlines(ds.assign_coords(x=NOLEAP[2:4]), tmp_path, append_dim="x") == []
    (change,) = headlines(ds.assign_coords(x=NOLEAP[4:6], y=[1e-9, 3e-9]), tmp_path, append_dim="x")
    (order,) = headlines(ds.assign_coords(x=NOLEAP[5:7], y=[1e-9, 3e-9]), tmp_path, append_dim="x")

    assert order == "after the append, the values of 'x' are neither increasing nor decreasing"
    assert change == "an append overwrites 'y' with other values, also for what is stored already"


@pytest.mark.parametrize("chunks", [None, {"time": 1}])
def test_an_append_that_ends_in_an_error_says_how_to_write_the_data_again(tmp_path, chunks):
    first = archive(2)
    first.u.encoding = {"dtype": "i2"}
    first.gpuzarr.to_zarr(tmp_path / "a", {"time": 1}, None, consolidated=False)
    bad = archive(2, 2)
    bad["u"] = bad.u * 1e6

    with pytest.raises(OptionError, match="do not fit") as caught:
        (bad if chunks is None else bad.chunk(chunks)).gpuzarr.to_zarr(
            tmp_path / "a", append_dim="time", consolidated=False
        )

    notes = getattr(caught.value, "__notes__", [])
    if chunks is None:  # found before the store is touched
        assert notes == []
        assert xr.open_zarr(tmp_path / "a", consolidated=False).sizes["time"] == 2
        return
    assert "write the corrected data with region={'time': slice(2, 4" in notes[0]
    archive(2, 2).gpuzarr.to_zarr(tmp_path / "a", region={"time": slice(2, 4)}, consolidated=False)
    xr.testing.assert_equal(
        xr.open_zarr(tmp_path / "a", consolidated=False).load(), xr.concat([archive(2), archive(2, 2)], "time")
    )
