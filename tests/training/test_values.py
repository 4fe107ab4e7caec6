"""Samples are what `Dataset.isel` gives for their boxes, however the dataset was opened and selected from."""

import pickle
from itertools import product

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.datasets import open_ours, open_stock, write_weather
from helpers.every_pair import usually
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import batches
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.counters import counters

pytestmark = pytest.mark.every_decoder


def values(seed, shape):
    data = np.random.default_rng(seed).normal(size=shape).astype("f4")
    data[data > 1.5] = np.nan
    return data


def store_of(seed, n_times, *, chunks=(2, 3, 4), shards=None, first=0, **encoding):
    """Return a store of a dataset with times, places, and an offset in its data."""
    shape = (n_times, 7, 9)
    ds = xr.Dataset(
        {
            "a": (("time", "y", "x"), values(seed, shape), {"units": "K"}),
            "b": (("time", "x"), np.arange(n_times * 9, dtype="i4").reshape(n_times, 9) + 1000 * seed),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(first, first + n_times) * np.timedelta64(6, "h"),
            "y": np.linspace(50, -50, 7),
            "place": (("y", "x"), np.arange(63).reshape(7, 9)),
        },
        attrs={"title": "invented"},
    )
    store = MemoryStore()
    of_a = {"chunks": chunks, "shards": shards, "dtype": "i2", "scale_factor": 0.01, "_FillValue": -9999} | encoding
    ds.to_zarr(store, encoding={"a": of_a}, consolidated=False)
    return store


@pytest.fixture(scope="module")
def stores():
    """Three stores that lie behind one another in time."""
    return [store_of(1, 10), store_of(2, 5, first=10, shards=(4, 6, 4)), store_of(3, 8, first=15, chunks=(3, 7, 5))]


def joined(stores, chunks):
    """Open stores one behind the other, as one dataset of dask's arrays."""
    opened = [open_ours(store, chunks=chunks, consolidated=False) for store in stores]
    return xr.concat(opened, dim="time", data_vars="minimal", coords="minimal", compat="override", join="override")


def assert_samples(ds, boxes, loader):
    """Compare the batches of an epoch, sample by sample, with what `isel` gives for boxes; all is in C order."""
    batches = list(loader)
    turned = {name for batch in batches for name, variable in batch.variables.items() if not is_in_c_order(variable)}
    assert turned <= set(ds.xindexes)
    found = [batch.isel(sample=i) for batch in batches for i in range(batch.sizes["sample"])]
    assert len(found) == len(boxes)
    whole = ds.compute()
    for sample, box in zip(found, boxes, strict=True):
        expected = whole.isel(box)
        xr.testing.assert_identical(
            sample.drop_indexes(list(sample.xindexes)), expected.drop_indexes(list(expected.xindexes))
        )
        for name, variable in expected.variables.items():
            assert sample.variables[name].dtype == variable.dtype
            assert sample.variables[name].encoding == variable.encoding


def is_in_c_order(variable):
    """Whether an array, on any device, is in C order without negative strides."""
    data = variable.data
    return not isinstance(data.dtype, np.dtype) or (data.flags.c_contiguous and min(data.strides, default=0) >= 0)


def lattice(ds, sizes, stride):
    axes = [range(0, ds.sizes[dim] - n + 1, stride.get(dim, n)) for dim, n in sizes.items()]
    return [
        dict(zip(sizes, (slice(s, s + n) for s, n in zip(at, sizes.values(), strict=True)), strict=True))
        for at in product(*axes)
    ]


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_samples_of_every_kind_of_variable(chunks, prefetch):
    store = MemoryStore()
    write_weather(store)
    ds = open_ours(store, chunks=chunks)
    sizes, stride = {"time": 3, "lat": 4}, {"time": 2, "lat": 1}

    loader = batches(ds, sizes, 4, stride=stride, prefetch=prefetch)

    assert_samples(ds, lattice(ds, sizes, stride), loader)


@pytest.mark.parametrize("loaded", [False, True], ids=["to read", "loaded"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("dtype", [">M8[us]", ">M8[ns]", "<M8[D]", ">m8[s]", "<m8[h]", ">f8", ">i2", "<U3"])
def test_samples_of_dtypes_that_xarray_changes_when_it_loads_them(dtype, chunks, loaded):
    store = MemoryStore()
    array = zarr.create_group(store, zarr_format=2).create_array(
        "v", shape=(6,), dtype=dtype, chunks=(4,), attributes={"_ARRAY_DIMENSIONS": ["x"]}
    )
    array[...] = np.arange(6).astype(dtype)
    ds = open_ours(store, consolidated=False, chunks=chunks)
    if loaded:
        ds.load()

    assert_samples(ds, lattice(ds, {"x": 2}, {}), batches(ds, {"x": 2}, 2))


@pytest.mark.parametrize("window", [None, 1, "1 MB"])
def test_samples_without_elements(window):
    store = MemoryStore()
    xr.Dataset({"v": (("time", "nothing"), np.zeros((6, 0), "f4"))}).to_zarr(store, consolidated=False)
    ds = open_ours(store, consolidated=False)

    assert_samples(ds, lattice(ds, {"time": 2}, {}), batches(ds, {"time": 2}, 2, window=window))


def test_batches_have_the_dimension_sample_and_keep_other_indexes():
    store = MemoryStore()
    write_weather(store)
    ds = open_ours(store)

    batch = next(iter(batches(ds, {"time": 3}, 2)))

    assert batch.t2m.dims == ("sample", "time", "lat", "lon")
    assert batch.time.dims == ("sample", "time")
    assert set(batch.xindexes) == {"lat", "lon"}
    assert list(batch.variables) == list(ds.variables)
    assert batch.attrs == ds.attrs
    assert batch.t2m.data.flags.c_contiguous
    xr.testing.assert_identical(batch.crs, ds.crs)


selections = st.lists(
    st.sampled_from(
        [
            {"time": slice(None, None, -1)},
            {"time": slice(1, None, 2)},
            {"time": slice(3, 20)},
            {"x": slice(None, None, -2)},
            {"y": slice(6, 0, -1)},
            {"x": [5, 1, 1, 4, 8, 0]},
            {"time": [0, 2, 3, 9, 11, 12, 17, 18, 20]},
            {"time": [20, 3, 18, 4, 4, 9, 10, 0, 21]},
            {"y": np.array([True, False, True, True, True, False, True])},
            {"x": -2},
            {"y": [1, 3, 4, 6]},
        ]
    ),
    max_size=3,
)


def selected(ds, chosen):
    for selection in chosen:
        ((dim, key),) = selection.items()
        if dim not in ds.dims:
            continue
        n = ds.sizes[dim]
        if isinstance(key, list):
            key = [k % n for k in key]
        if isinstance(key, np.ndarray):
            key = np.resize(key, n)
        after = ds.isel({dim: key})
        ds = after if 0 not in after.sizes.values() else ds
    return ds


@st.composite
def samplings(draw, ds):
    """Draw sizes, and where samples begin, for a dataset."""
    dims = draw(st.lists(st.sampled_from(sorted(ds.a.dims)), min_size=1, unique=True))
    sizes = {dim: draw(st.integers(1, min(6, ds.sizes[dim]))) for dim in dims}
    n = draw(st.integers(1, 6))
    positions = {
        dim: draw(st.lists(st.integers(0, ds.sizes[dim] - k), min_size=n, max_size=n)) for dim, k in sizes.items()
    }
    boxes = [{dim: slice(positions[dim][i], positions[dim][i] + k) for dim, k in sizes.items()} for i in range(n)]
    return sizes, positions, boxes


@settings(max_examples=usually(8, full=25))
@given(data=st.data())
@pytest.mark.parametrize("order", ["lazy", "C", "F"])
def test_samples_after_any_selection_of_one_store(stores, order, data):
    ds = open_ours(stores[data.draw(st.integers(0, 2))], consolidated=False)
    if order != "lazy":
        ds = ds.map(lambda a: a.copy(data=a.data.copy(order=order)), keep_attrs=True)
    ds = selected(ds, data.draw(selections))
    sizes, positions, boxes = data.draw(samplings(ds))

    assert_samples(ds, boxes, batches(ds, sizes, data.draw(st.integers(1, 4)), positions=positions, prefetch=0))


@pytest.mark.filterwarnings("ignore:The specified chunks separate")
@settings(max_examples=usually(8, full=25))
@given(data=st.data())
def test_samples_after_any_selection_of_several_stores(stores, data):
    chosen = data.draw(st.permutations(stores))
    chunks = data.draw(st.sampled_from([{}, {"time": 3}, {"time": 4, "x": 5, "y": 2}]))
    ds = joined(chosen, chunks)
    ds = ds.chunk(time=data.draw(st.integers(1, 30))) if data.draw(st.booleans()) else ds
    ds = selected(ds, data.draw(selections))
    sizes, positions, boxes = data.draw(samplings(ds))

    assert_samples(ds, boxes, batches(ds, sizes, data.draw(st.integers(1, 4)), positions=positions, prefetch=0))


ONE_PLAN = {"a one plan", "b one plan"}


@pytest.mark.every_value
@pytest.mark.parametrize(
    ("select", "said"),
    [
        (lambda ds: ds.isel(time=ds.time.dt.hour.values < 13), ONE_PLAN),
        (lambda ds: ds.sel(time=slice("2020-01-02", "2020-01-05")).isel(x=3), ONE_PLAN),
        (lambda ds: ds.chunk(time=7, y=2).isel(time=slice(None, None, -3), y=[5, 0, 1]), ONE_PLAN),
        (lambda ds: ds.isel(time=[22, 21, 17, 12, 11, 4, 4, 0]), ONE_PLAN),
        (lambda ds: ds.isel(y=slice(0)), ONE_PLAN),
        (lambda ds: ds.isel(time=[0, 12, 1, 13, 2, 14]), {"a dask: elements of several arrays alternate in it"}),
    ],
)
def test_selections_of_several_stores_are_read_by_one_plan_each_unless_they_take_turns(stores, select, said):
    ds = select(joined(stores, {}))

    loader = batches(ds, {"time": 4}, 3, stride={"time": 1})

    assert said <= {f"{row.variable} {row.way}{row.why and ': '}{row.why}" for row in loader.explain().rows}
    assert_samples(ds, lattice(ds, {"time": 4}, {"time": 1}), loader)


@pytest.mark.every_value
@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds + 1,
        lambda ds: ds.transpose("x", "y", "time"),
        lambda ds: ds.isel(time=xr.DataArray([[0, 1], [2, 3]], dims=("pair", "z"))).rename(pair="time"),
        lambda ds: ds.load(),
        lambda ds: ds.assign(a=ds.a * 2),
        lambda ds: ds.assign(c=("time", [f"text {i}" for i in range(ds.sizes["time"])])),
        lambda ds: ds.stack(place_and_time=("time", "y")).rename(place_and_time="time2").isel(x=slice(0, 4)),
    ],
    ids=["computed", "transposed", "points", "loaded", "mixed", "text", "stacked"],
)
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.host_decoder
def test_what_is_no_plain_selection_is_read_as_well(stores, change, chunks):
    ds = change(open_ours(stores[0], chunks=chunks, consolidated=False))
    dim = "time2" if "time2" in ds.dims else "time"

    assert_samples(ds, lattice(ds, {dim: 2}, {dim: 1}), batches(ds, {dim: 2}, 3, stride={dim: 1}))


def test_every_chunk_is_read_once_per_batch_and_only_those_below_it():
    store = store_of(1, 12, chunks=(2, 7, 9))
    ds = open_ours(store, consolidated=False)[["a"]].drop_vars(["place"])
    positions = {"time": [2, 3, 3, 4, 2, 2, 5, 5], "x": [0, 1, 2, 3, 4, 5, 6, 7]}
    loader = batches(ds, {"time": 3, "x": 2}, 8, positions=positions, prefetch=0)

    before = counters.snapshot()
    next(iter(loader))

    assert counters.snapshot().decoded_nbytes - before.decoded_nbytes == 3 * 2 * 7 * 9 * 2  # chunks of times 2 to 7


@pytest.mark.parametrize(("starts", "n_chunks"), [([0, 1], 3), ([13, 14, 14], 3), ([9, 11], 4), ([0, 16], 4)])
def test_of_several_stores_only_chunks_below_the_samples_are_read(starts, n_chunks):
    stores = [store_of(1, 12, chunks=(2, 7, 9)), store_of(2, 12, first=12, chunks=(2, 7, 9))]
    opened = [open_ours(store, chunks={}, consolidated=False)[["a"]].drop_vars("place") for store in stores]
    ds = xr.concat(opened, dim="time")
    loader = batches(ds, {"time": 4}, 8, positions={"time": starts}, prefetch=0)

    before = counters.snapshot()
    list(loader)

    assert counters.snapshot().decoded_nbytes - before.decoded_nbytes == n_chunks * 2 * 7 * 9 * 2


def test_every_chunk_is_read_once_per_window():
    store = store_of(1, 12, chunks=(2, 7, 9))
    ds = open_ours(store, consolidated=False)[["a"]].drop_vars(["place"])
    keywords = {"stride": {"time": 1}, "shuffle": True, "window": ds.a.nbytes * 20, "prefetch": 1}

    before = counters.snapshot()
    found = list(batches(ds, {"time": 2}, 3, **keywords))

    assert counters.snapshot().decoded_nbytes - before.decoded_nbytes == 12 * 7 * 9 * 2
    assert [batch.sizes["sample"] for batch in found] == [3, 3, 3, 2]


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_unpickled_batches_give_the_same(stores, chunks):
    ds = open_ours(stores[1], chunks=chunks, consolidated=False)
    loader = batches(ds, {"time": 2, "y": 3}, 3, shuffle=True)

    again = pickle.loads(pickle.dumps(loader))

    for one, other in zip(loader, again, strict=True):
        xr.testing.assert_identical(one, other)


@pytest.mark.host_decoder
def test_datasets_of_other_engines_are_read_too():
    store = MemoryStore()
    write_weather(store)
    ds = open_stock(store)[["t2m", "valid"]]

    loader = batches(ds, {"time": 3, "lat": 2}, 4)

    assert [row.why for row in loader.explain().rows if row.way == "crop by crop"] == ["it is read by xarray"] * 3
    assert_samples(ds, lattice(ds, {"time": 3, "lat": 2}, {}), loader)


WINDS = {"sizes": {"time": 3, "x": 4}, "batch": 4}


def winds(seed=0, n_times=10, chunks=None):
    """Return a lazy dataset of two packed variables and one of float64, with the same dimensions."""
    rng, store = np.random.default_rng(seed), MemoryStore()
    ds = xr.Dataset(
        {name: (("time", "y", "x"), rng.normal(size=(n_times, 5, 9)), {"units": "m/s"}) for name in "uvw"},
        {"y": np.linspace(50, -50, 5), "hour": ("time", np.arange(n_times) % 4)},
        {"title": "invented"},
    )
    packed = {"dtype": "i2", "scale_factor": 1e-3, "add_offset": 0.1, "_FillValue": -9999, "chunks": (2, 3, 4)}
    ds["u"] = ds.u.where(ds.u < 1.5)
    ds.to_zarr(store, encoding={"u": packed, "v": packed}, consolidated=False)
    return open_ours(store, chunks=chunks, consolidated=False)[["u", "v", "w"]]


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize(
    "select",
    [
        lambda ds: ds,
        lambda ds: ds.isel(time=slice(None, None, -1), y=3),
        lambda ds: ds.assign(v=ds.v * 2),
        lambda ds: ds.assign(w=ds.w.load()),
        lambda ds: ds * 2,
        lambda ds: ds.compute(),
        lambda ds: xr.concat([ds, ds.isel(time=slice(4))], "time"),
    ],
    ids=["whole", "reversed", "computed", "in memory", "all computed", "all in memory", "concatenated"],
)
def test_stacked_variables_are_what_to_dataarray_gives(select, dtype, chunks):
    ds = select(winds(chunks=chunks))
    expected = [batch.to_dataarray("channel").transpose("sample", "channel", ...) for batch in batches(ds, **WINDS)]

    found = list(batches(ds, **WINDS, dtype=dtype, stack="channel"))

    assert len(found) == len(expected) > 1
    for batch, plain in zip(found, expected, strict=True):
        assert batch.dims == plain.dims
        xr.testing.assert_identical(batch, plain.astype(dtype) if dtype else plain)
        assert is_in_c_order(batch.variable)


def test_float32_batches_are_rounded_once():
    ds = winds()
    for batch, wide in zip(batches(ds, **WINDS, dtype=np.float32), batches(ds, **WINDS), strict=True):
        assert {name: str(v.dtype) for name, v in batch.data_vars.items()} == dict.fromkeys("uvw", "float32")
        xr.testing.assert_identical(batch, wide.astype("f4"))
    assert batches(ds, **WINDS, dtype="float32").nbytes * 2 - batches(ds, **WINDS).nbytes == batch.hour[0].nbytes * 4


@pytest.mark.parametrize(
    ("keywords", "found"),
    [
        ({"stack": "x"}, "a dimension or a variable of that name"),
        ({"stack": "u"}, "a dimension or a variable of that name"),
        ({"stack": "sample"}, "a dimension or a variable of that name"),
        ({"stack": True}, "not a name"),
        (
            {"stack": "channel", "change": {"w": (("x", "time", "y"), np.zeros((9, 10, 5)))}},
            r"(?s)of 'w'.*transpose\(\)",
        ),
        ({"stack": "channel", "change": {"w": ("y", np.zeros(5))}}, "dimensions \\('y',\\) of 'w'"),
        ({"stack": "channel", "change": {"u": ((), 1.0)}}, "no dimension of the samples in 'u'"),
        ({"stack": "channel", "change": {"w": (("time", "y"), np.zeros((10, 5)))}}, "dimensions .* of 'w'"),
        (
            {"stack": "channel", "change": {"w": (("time", "y", "x"), np.zeros((10, 5, 9), "f4"))}},
            "dtype float32 of 'w', float64 of 'u'",
        ),
        ({"dtype": "float16"}, "neither"),
    ],
)
def test_what_does_not_fit_into_one_array_is_refused(keywords, found):
    options = dict(keywords)
    ds = winds().assign(options.pop("change", {}))
    with pytest.raises(OptionError, match=found):
        batches(ds, **WINDS, **options)
