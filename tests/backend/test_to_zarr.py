"""``ds.gpuzarr.to_zarr`` and ``encoding``: chunks and shards by size, packing kept, no two tasks in one shard."""

import math
import threading

import dask
import dask.array as da
import numcodecs
import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from helpers.clusters import local_cluster
from helpers.loops import require_loops
from helpers.writes import writes_counted
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec
from zarr.storage import FsspecStore, LoggingStore, MemoryStore, ObjectStore, ZipStore

from xarray_gpuzarr.backend.accessor import whole_shards
from xarray_gpuzarr.backend.accessor.shard_borders import cut_at_multiples
from xarray_gpuzarr.errors import NoGroupError, OptionError

PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32768)}
CODECS_OF = {2: "a codec of numcodecs", 3: "a codec of zarr.codecs"}
CHUNKS, SHARDS = {"time": 1, "y": 10}, {"time": 4, "y": 20}
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")


def weather(n_times=30, first=0):
    """Packed temperatures on a grid, with times and a mask."""
    rng = np.random.default_rng(first)
    values = rng.uniform(250, 300, (n_times, 40, 50)).round(2)
    values[0, 0, 0] = np.nan
    times = np.datetime64("2020-01-01", "ns") + (first + np.arange(n_times)) * np.timedelta64(6, "h")
    ds = xr.Dataset(
        {"t2m": (("time", "y", "x"), values, {"units": "K"}), "land": (("y", "x"), np.indices((40, 50))[0] % 3 == 1)},
        {"time": times, "y": np.arange(40.0), "name": ("y", [f"row {n}" for n in range(40)])},
    )
    ds.t2m.encoding = dict(PACKED)
    return ds


def opened(store, chunks=None):
    return xr.open_dataset(store, engine="gpuzarr", device="host", chunks=chunks)


@pytest.mark.parametrize("chunks", [None, {"time": 8}, {"time": 4, "y": 20, "x": 50}], ids=str)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_written_is_packed_and_sharded_and_the_same(chunks, zarr_format, tmp_path):
    ds = weather() if chunks is None else weather().chunk(chunks)

    ds.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, zarr_format=zarr_format)

    array = zarr.open_group(tmp_path / "a", mode="r")["t2m"]
    assert (array.chunks, array.shards) == ((1, 10, 50), (4, 20, 50) if zarr_format == 3 else None)
    assert array.dtype == np.dtype("int16")
    with xr.open_dataset(tmp_path / "a", engine="zarr") as written:
        xr.testing.assert_allclose(written, ds, rtol=0, atol=1e-9)
        assert written.t2m.attrs == {"units": "K"}
        assert written.t2m.encoding["scale_factor"] == 0.01


@pytest.mark.parametrize(("small_nbytes", "n_writes"), [(0, 8 * 2 + 2 + 2), (2**24, 4)])
def test_the_loops_write_one_task_a_shard_or_a_small_variable_at_once(small_nbytes, n_writes, tmp_path, monkeypatch):
    require_loops()
    monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", small_nbytes)
    with writes_counted() as counts:
        weather().drop_vars(["name"]).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    assert counts == [n_writes, 0]  # temperatures, mask, times and rows


def test_a_copy_of_a_store_keeps_its_packing_and_codecs(tmp_path):
    weather().gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, compressors=ZstdCodec(level=7))

    opened(tmp_path / "a", {}).gpuzarr.to_zarr(tmp_path / "b", {"time": 2}, {"time": 4}, rechunk=True)

    one, other = (zarr.open_group(tmp_path / name, mode="r")["t2m"] for name in "ab")
    assert other.compressors == one.compressors
    np.testing.assert_array_equal(other[...], one[...])


def test_results_without_encoding(tmp_path):
    weather().gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    celsius = opened(tmp_path / "a", {}) - 273.15

    celsius.gpuzarr.to_zarr(tmp_path / "b", CHUNKS, SHARDS)

    np.testing.assert_allclose(opened(tmp_path / "b").t2m, celsius.t2m)


def test_times_longer_than_a_shard_keep_the_units_that_fit_them(tmp_path):
    times = np.datetime64("2000-01-01", "ns") + np.arange(50) * np.timedelta64(6, "h")
    ds = xr.Dataset({"seen": ("time", times)})
    ds.gpuzarr.to_zarr(tmp_path / "a", {"time": 5}, {"time": 10})
    assert opened(tmp_path / "a").seen.encoding["units"].startswith("hours since")


def test_text_in_chunks_of_any_length(tmp_path):
    names = xr.Dataset({"name": ("x", np.array([f"row {n}" for n in range(9)], object))}).chunk(x=(2, 4, 3))
    names.gpuzarr.to_zarr(tmp_path / "a", rechunk=True)
    assert opened(tmp_path / "a").name.values.tolist() == names.name.values.tolist()


def test_encoding_of_some_variables_is_changed(tmp_path):
    weather().gpuzarr.to_zarr(tmp_path / "a", encoding={"t2m": {"dtype": "int32", "scale_factor": 0.001}})
    array = zarr.open_group(tmp_path / "a", mode="r")["t2m"]
    assert (array.dtype, array.attrs["add_offset"]) == (np.dtype("int32"), 273.15)


def test_chunks_inside_of_shards_are_an_error_that_says_how(tmp_path):
    rolled = weather().chunk(time=4).rolling(time=3).mean()

    with pytest.raises(OptionError, match=r"end inside shards of variable 't2m'") as caught:
        rolled.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, {"time": 8})

    assert caught.value.do.endswith("such as ds.chunk({'time': 8})")
    assert not (tmp_path / "a").exists()
    rolled.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, {"time": 8}, rechunk=True)
    np.testing.assert_allclose(opened(tmp_path / "a").t2m, rolled.t2m)


def test_arrays_that_an_append_has_left_longer_are_cut_back_as_errors_say(tmp_path):
    weather(30).gpuzarr.to_zarr(tmp_path, CHUNKS, SHARDS)
    zarr.open_array(tmp_path / "time", mode="r+").resize((39,))
    zarr.consolidate_metadata(tmp_path)
    advice = r"resize\(shape\)[^;]*call zarr.consolidate_metadata"

    with pytest.raises(NoGroupError, match=advice):
        opened(tmp_path)
    with pytest.raises(OptionError, match=advice):
        weather(9, first=30).gpuzarr.to_zarr(tmp_path, append_dim="time")

    zarr.open_array(tmp_path / "time", mode="r+").resize((30,))
    zarr.consolidate_metadata(tmp_path)
    assert opened(tmp_path).time.equals(weather(30).time)
    weather(9, first=30).gpuzarr.to_zarr(tmp_path, append_dim="time")
    assert opened(tmp_path).sizes["time"] == 39


@pytest.mark.parametrize("n_more", [3, 9, 90])
def test_chunks_for_an_append_inside_of_a_shard_are_suggested(tmp_path, n_more):
    weather(30).gpuzarr.to_zarr(tmp_path, CHUNKS, SHARDS)
    more = weather(n_more, first=30).chunk(time=1)

    with pytest.raises(OptionError, match="two tasks would write") as caught:
        more.gpuzarr.to_zarr(tmp_path, append_dim="time")

    argument = caught.value.do.partition("ds.chunk(")[2].removesuffix(")")
    more.chunk(eval(argument)).gpuzarr.to_zarr(tmp_path, append_dim="time")
    np.testing.assert_allclose(opened(tmp_path).t2m[30:], more.t2m, atol=1e-9)


@pytest.mark.parametrize("chunks", [None, {"time": 3}])
def test_append_cuts_tasks_at_the_borders_of_shards(tmp_path, chunks):
    weather(30).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    more = weather(9, first=30)

    (more if chunks is None else more.chunk(chunks)).gpuzarr.to_zarr(tmp_path / "a", append_dim="time", rechunk=True)

    expected = xr.concat([weather(30), more], "time", data_vars="minimal")
    xr.testing.assert_allclose(opened(tmp_path / "a").load(), expected, rtol=0, atol=1e-9)
    with pytest.raises(OptionError, match="two tasks would write"):
        weather(9, first=39).chunk(time=4).gpuzarr.to_zarr(tmp_path / "a", append_dim="time")


@pytest.mark.parametrize(
    "region", [{"time": slice(3, 11)}, {"time": slice(-27, -19)}, {"time": "auto"}, "auto"], ids=str
)
def test_regions(tmp_path, region):
    weather(30).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    part = (weather(30) + 5).isel(time=slice(3, 11))
    part = part if region == "auto" else part.drop_vars(["y", "name"]).drop_vars("land")

    part.drop_vars("land", errors="ignore").gpuzarr.to_zarr(tmp_path / "a", region=region)

    found, before = opened(tmp_path / "a").t2m, weather(30).t2m
    np.testing.assert_allclose(found[3:11], before[3:11] + 5, atol=1e-9)
    np.testing.assert_allclose(found[:3], before[:3], atol=1e-9)
    np.testing.assert_allclose(found[11:], before[11:], atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        *({"region": region} for region in ("x", {"time": "x"}, {"time": 6}, 5, {"time": "auto"}, {"y": slice(3)})),
        {"append_dim": "time", "encoding": {"t2m": {"dtype": "int32"}}},
    ],
    ids=str,
)
def test_what_xarray_refuses(tmp_path, options):
    weather(30).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    part = weather(8, first=100).drop_vars(["y", "name", "land"])
    outcomes = []
    for write in part.to_zarr, part.gpuzarr.to_zarr:
        with pytest.raises((TypeError, ValueError, KeyError)) as caught:
            write(tmp_path / "a", **options)
        outcomes.append((type(caught.value), str(caught.value)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("mode", ["a", "a-"])
def test_variables_that_are_added_have_the_format_of_the_store(tmp_path, mode):
    weather(4).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, zarr_format=2)
    added = weather(4)[["t2m"]].rename(t2m="more").drop_vars(["y", "name"])
    options = {}
    if mode == "a-":  # an append, of times and a variable that has none
        added = added.assign(more=added.more.isel(time=0, drop=True))
        options = {"append_dim": "time"}
    added.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, mode=mode, safe_chunks=True, **options)
    group = zarr.open_group(tmp_path / "a", mode="r")
    assert group["more"].metadata.zarr_format == 2
    assert group["more"].chunks == (1, 10, 50)[-added.more.ndim :]


def test_chunks_of_unknown_length(tmp_path):
    values = da.from_array(np.arange(10.0), chunks=5)
    ds = xr.Dataset({"v": ("x", values[values > 3])})
    with pytest.raises(OptionError, match="the shape of variable 'v' is not known"):
        ds.gpuzarr.to_zarr(tmp_path / "a")


def test_groups_and_stores_of_other_kinds():
    store = MemoryStore()
    weather(4).gpuzarr.to_zarr(store, CHUNKS, SHARDS, group="a/b")
    found = xr.open_dataset(store, engine="gpuzarr", group="a/b", device="host")
    np.testing.assert_allclose(found.t2m, weather(4).t2m, atol=1e-9)


def test_memory_that_nobody_named():
    there = weather(4).chunk(time=2).gpuzarr.to_zarr(None, CHUNKS, SHARDS, rechunk=True)
    np.testing.assert_allclose(opened(there.zarr_group.store).t2m, weather(4).t2m, atol=1e-9)


def test_a_zip_file(tmp_path):
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        weather(4).chunk(time=2).gpuzarr.to_zarr(store, CHUNKS, SHARDS, rechunk=True)
    with ZipStore(tmp_path / "a.zip") as store:
        np.testing.assert_allclose(opened(store).t2m, weather(4).t2m, atol=1e-9)


def test_later(tmp_path):
    delayed = weather().chunk(time=4, y=20).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, compute=False)
    assert not list((tmp_path / "a/t2m").glob("c/*"))
    dask.compute(delayed)
    np.testing.assert_allclose(opened(tmp_path / "a").t2m, weather().t2m, atol=1e-9)


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def is_terminal(request, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR" if request.param else "TTY_COMPATIBLE", "1" if request.param else "0")
    return request.param


def test_a_bar_or_a_line_shows_how_far_it_is(tmp_path, capsys, is_terminal):
    weather().chunk(time=4, y=20).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, progress=True)
    shown = capsys.readouterr().out
    assert "20 tasks, each of at most 40.0 kB: one decoded block and its packed copy" in shown
    assert ("100% Completed" in shown) == is_terminal
    if not is_terminal:
        n_done, n_steps = shown.splitlines()[-1].removesuffix(" steps done").split(" of ")
        assert n_done == n_steps
        assert int(n_steps) > 20


def test_a_bar_or_a_line_shows_how_far_workers_are(tmp_path, capsys, is_terminal):
    with local_cluster(n_workers=1):
        there = weather().chunk(time=4).gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, rechunk=True, progress=True)
    assert ("100% Completed" if is_terminal else "all tasks done\n") in capsys.readouterr().out
    assert isinstance(there, xr.backends.ZarrStore)
    np.testing.assert_allclose(opened(tmp_path / "a").t2m, weather().t2m, atol=1e-9)


def test_what_is_in_memory_is_written_by_this_process_on_a_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", 0)
    store = MemoryStore()  # to which no worker could write
    with local_cluster(n_workers=1):
        weather().gpuzarr.to_zarr(store, CHUNKS, SHARDS)
    np.testing.assert_allclose(opened(store).t2m, weather().t2m, atol=1e-9)


STORES_OF_THIS_PROCESS = {
    "dict": dict,
    "memory": MemoryStore,
    "wrapped": lambda: LoggingStore(MemoryStore(), log_level="CRITICAL"),
    "obstore": lambda: ObjectStore(obstore.store.MemoryStore()),
    "fsspec": lambda: FsspecStore.from_url("memory://refused"),
    "URL": lambda: "memory://refused",
}


@pytest.mark.parametrize("make_store", STORES_OF_THIS_PROCESS.values(), ids=STORES_OF_THIS_PROCESS)
def test_stores_that_other_processes_cannot_write_to_are_refused(make_store):
    chunked = weather().chunk(time=12)
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(OptionError, match="the workers of dask cannot write to the store"),
    ):
        chunked.gpuzarr.to_zarr(make_store(), CHUNKS, SHARDS)


@pytest.mark.parametrize("make_store", [STORES_OF_THIS_PROCESS["fsspec"], STORES_OF_THIS_PROCESS["URL"]])
def test_the_scheduler_that_is_named_decides_whose_memory_a_store_is_in(make_store):
    chunked = weather().chunk(time=12)
    with local_cluster(n_workers=1, processes=False):  # its workers share fsspec's memory with this process
        with pytest.raises(OptionError, match="the workers of dask cannot write to the store"):
            chunked.gpuzarr.to_zarr(make_store(), CHUNKS, SHARDS, chunkmanager_store_kwargs={"scheduler": "processes"})
        chunked.gpuzarr.to_zarr(make_store(), CHUNKS, SHARDS, mode="w")
    np.testing.assert_allclose(opened(make_store()).t2m, weather().t2m, atol=1e-9)


@pytest.mark.parametrize("small_nbytes", [0, 2**24])
def test_what_is_in_memory_is_written_by_this_process_although_dask_uses_others(small_nbytes, monkeypatch):
    monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", small_nbytes)
    store = MemoryStore()
    with dask.config.set(scheduler="processes"):
        weather().gpuzarr.to_zarr(store, CHUNKS, SHARDS)
    np.testing.assert_allclose(opened(store).t2m, weather().t2m, atol=1e-9)


@pytest.mark.parametrize("progress", [False, True])
def test_dask_gets_the_keywords_of_its_compute(progress):
    threads = set()

    def record(block):
        threads.add(threading.current_thread())
        return block

    chunked = weather()[["t2m"]].chunk(time=12)
    chunked["t2m"] = chunked.t2m.copy(data=chunked.t2m.data.map_blocks(record, meta=np.empty((0, 0, 0))))
    chunked.gpuzarr.to_zarr(
        MemoryStore(), CHUNKS, SHARDS, progress=progress, chunkmanager_store_kwargs={"scheduler": "synchronous"}
    )
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("kind", ["memory", "Icechunk"])
def test_stores_that_workers_cannot_write_to_are_refused(kind, tmp_path):
    def icechunk_store():
        icechunk = pytest.importorskip("icechunk")
        return icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main").store

    store = {"memory": MemoryStore, "Icechunk": icechunk_store}[kind]()
    chunked = weather().chunk(time=4)
    with local_cluster(n_workers=1):
        with pytest.raises(OptionError, match=r"the workers of dask cannot write to the store.*[\s\S]*to_icechunk"):
            chunked.gpuzarr.to_zarr(store, CHUNKS, SHARDS, rechunk=True)
        chunked.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS, rechunk=True)
    np.testing.assert_allclose(opened(tmp_path / "a").t2m, weather().t2m, atol=1e-9)


@pytest.mark.parametrize("small_nbytes", [0, 2**24])
@pytest.mark.parametrize("chunks", [None, {"time": 4, "y": 20}], ids=["NumPy", "dask"])
def test_values_that_do_not_fit_are_named_with_their_place_unless_asked_not_to(chunks, small_nbytes, monkeypatch):
    monkeypatch.setattr(whole_shards, "_SMALL_NBYTES", small_nbytes)
    ds, store = weather()[["t2m"]], MemoryStore()
    ds.t2m[9, 25, 7] = 1e6
    ds = ds if chunks is None else ds.chunk(chunks)
    with pytest.raises(OptionError, match=r"the value 1000000.0, which has to be stored as .* fit, at \(9, 25, 7\)"):
        ds.gpuzarr.to_zarr(store, CHUNKS, SHARDS, mode="w")
    ds.gpuzarr.to_zarr(store, CHUNKS, SHARDS, mode="w", check_values=False)
    stock = MemoryStore()
    ds.to_zarr(stock, encoding=ds.gpuzarr.encoding(CHUNKS, SHARDS), safe_chunks=False)
    np.testing.assert_array_equal(opened(store).t2m, opened(stock).t2m)


def test_a_region_outside_and_an_unknown_variable_are_named():
    store = MemoryStore()
    weather().gpuzarr.to_zarr(store, CHUNKS, SHARDS)
    part = weather(4)[["t2m"]].drop_vars(["time", "y", "name"])
    with pytest.raises(OptionError, match=r"slice\(28, 32\)[\s\S]*30 elements along 'time'"):
        part.gpuzarr.to_zarr(store, region={"time": slice(28, 32)}, rechunk=True)
    with pytest.raises(OptionError, match=r"unknown variable 't2n'[\s\S]*perhaps 't2m'"):
        weather().gpuzarr.to_zarr(store, CHUNKS, SHARDS, mode="w", encoding={"t2n": {"dtype": "f4"}})


def test_a_store_that_may_not_be_written_to_says_what_was_tried(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("xarray_gpuzarr.backend.accessor.writing.get_writable_zarr_store", refuse)
    with pytest.raises(PermissionError) as caught:
        weather().gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    assert "check that you may write there" in caught.value.__notes__[0]


def test_a_store_that_exists_is_named(tmp_path):
    weather().gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)

    with pytest.raises(FileExistsError) as caught:
        weather().gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)

    (note,) = caught.value.__notes__
    assert str(tmp_path / "a") in note
    assert "mode='w'" in note


def test_each_task_has_one_shard_in_memory(tmp_path):
    """Blocks are made when they are written, and not before: two of them at once, on two threads."""
    alive, most = set(), []

    def block(info=None):
        alive.add(info)
        most.append(len(alive))
        return np.zeros((4, 20, 50))

    def made(block_id):
        found = block(block_id)
        alive.discard(block_id)
        return found

    blocks = da.map_blocks(made, chunks=((4,) * 8, (20, 20), (50,)), dtype="f8", meta=np.zeros((0, 0, 0)))
    ds = xr.Dataset({"t2m": (("time", "y", "x"), blocks)})
    with dask.config.set(scheduler="threads", num_workers=2):
        ds.gpuzarr.to_zarr(tmp_path / "a", CHUNKS, SHARDS)
    assert len(most) == 16
    assert max(most) <= 2


@settings(deadline=None)
@given(start=st.integers(0, 40), n=st.integers(1, 60), length=st.integers(1, 20))
def test_cuts_are_at_multiples_of_a_length(start, n, length):
    lengths = cut_at_multiples(start, n, length)
    ends = start + np.cumsum(lengths)
    assert ends[-1] == start + n
    assert (np.array(lengths) > 0).all()
    assert all(end % length == 0 for end in ends[:-1])
    assert len(lengths) == (start + n - 1) // length - start // length + 1


# ---- ``ds.gpuzarr.encoding``


@pytest.fixture(params=[2, 3])
def source(request):
    """A packed store of each format, as it is opened."""
    store = MemoryStore()
    weather(6).assign(n=7).to_zarr(store, zarr_format=request.param)
    return opened(store)


def test_compressors_are_those_that_are_given_or_were_there(source):
    ours = ZstdCodec(level=7)
    assert all(v["compressors"] is ours for v in source.gpuzarr.encoding(compressors=ours).values())

    were = source.t2m.encoding["compressors"]
    in_format = 3 if isinstance(were[0], zarr.abc.codec.Codec) else 2
    kept = {n: source.gpuzarr.encoding(zarr_format=n)["t2m"].get("compressors") for n in (2, 3)}
    assert kept == {in_format: were, 5 - in_format: None}


def test_text_and_numbers_have_no_chunks(source):
    encoding = source.gpuzarr.encoding()
    assert "chunks" not in encoding["name"]
    assert "chunks" not in encoding["n"]


def test_lengths_are_those_of_the_store_however_short_the_axes_are(source):
    encoding = source.gpuzarr.encoding({"time": 2, "y": 4}, {"time": 198, "y": 40})["t2m"]
    assert encoding["chunks"] == (2, 4, 50)


def test_nothing_is_read():
    lazy = xr.Dataset({"a": ("x", da.from_delayed(dask.delayed(fail)(), (10**6,), "f4"))})
    assert lazy.gpuzarr.encoding("1 MB", "2 MB")["a"] == {"chunks": (250_000,), "shards": (500_000,)}


def fail():
    raise AssertionError


@given(
    shape=st.lists(st.integers(0, 5000), min_size=1, max_size=4),
    dtype=st.sampled_from(["i1", "f4", "f8", "c16"]),
    chunk_nbytes=st.integers(1, 10**7),
    shard_nbytes=st.integers(1, 10**9),
)
def test_sizes_are_kept_within_and_filled(shape, dtype, chunk_nbytes, shard_nbytes):
    assume(chunk_nbytes <= shard_nbytes)
    dims = [f"d{n}" for n in range(len(shape))]
    array = xr.Dataset({"a": (dims, np.broadcast_to(np.zeros((), dtype), shape))})

    found = array.gpuzarr.encoding(chunk_nbytes, shard_nbytes)["a"]

    itemsize, chunk = np.dtype(dtype).itemsize, found["chunks"]
    shard = found.get("shards", chunk)
    assert math.prod(chunk) * itemsize <= max(itemsize, chunk_nbytes)
    assert math.prod(shard) * itemsize <= max(math.prod(chunk) * itemsize, shard_nbytes)
    assert all(s % c == 0 for s, c in zip(shard, chunk, strict=True))
    assert all(c <= max(1, n) for c, n in zip(chunk, shape, strict=True))
    if math.prod(chunk) < math.prod(max(1, n) for n in shape):  # half of it at least, where it was cut
        assert 4 * math.prod(chunk) * itemsize > chunk_nbytes or math.prod(chunk) == 1


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"chunks": "1 mile"}, "not a size"),
        *(({"chunks": chunks}, "at least 1") for chunks in (0, True, {"time": 0}, "0 B", "0.5 B")),
        ({"chunks": "2 MiB", "shards": "1 MiB"}, "a shard that has no room for a chunk"),
        ({"shards": {"tme": 4}}, "perhaps 'time'"),
        ({"chunks": {"time": 4}, "shards": {"time": 6}}, "6 is not a multiple of 4"),
        ({"chunks": {"time": 24}, "shards": {"time": 12}}, "12 is not a multiple of 24"),
        ({"chunks": {"time": 24}, "shards": {"time": 36, "y": -1}}, "36 is not a multiple of 24"),
        ({"zarr_format": 4}, "neither 2 nor 3"),
    ],
)
def test_what_is_unusable_is_named(keywords, words):
    with pytest.raises(OptionError, match=words):
        weather(12).gpuzarr.encoding(**keywords)


@pytest.mark.parametrize(
    ("chunks", "shards"),
    [(1000, 2**16), ({"time": 2, "x": -1}, {"time": 4}), (1000, {"time": 4}), ({"time": 2}, 2**16), (1000, None)],
)
def test_sizes_may_be_integers_of_numpy(chunks, shards):
    def in_numpy(size):
        if isinstance(size, dict):
            return {dim: np.int64(n) for dim, n in size.items()}
        return size and np.int64(size)

    ds, store = weather(12), MemoryStore()

    encoding = ds.gpuzarr.encoding(in_numpy(chunks), in_numpy(shards))
    ds.gpuzarr.to_zarr(store, in_numpy(chunks), in_numpy(shards), consolidated=False)

    expected = ds.gpuzarr.encoding(chunks, shards)
    assert encoding == expected
    shapes = [shape for keys in encoding.values() for key, shape in keys.items() if key in ("chunks", "shards")]
    assert {type(length) for shape in shapes for length in shape} == {int}
    array = zarr.open_array(store, path="t2m")
    assert (array.chunks, array.shards) == (expected["t2m"]["chunks"], expected["t2m"].get("shards"))


def test_chunks_larger_than_shards_are_refused_as_integers_of_numpy():
    with pytest.raises(OptionError, match="a shard that has no room for a chunk"):
        weather(12).gpuzarr.encoding(np.int64(2000), np.int64(1000))


@pytest.mark.parametrize(
    ("length", "chunks", "expected"),
    [(96, "8 KiB", 96), (96, "400 B", 48), (365, "1600 B", 73), (24, "1 MiB", 24), (400, "600 B", 50)],
)
def test_chunks_of_a_size_divide_shards_of_a_length(length, chunks, expected):
    """Also those of coordinates that are longer than a shard, and if the shard is as long as the axis."""
    ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((400, 3), "f4"))}, {"time": np.arange(400.0)})

    encoding = ds.gpuzarr.encoding(chunks, {"time": length})

    assert encoding["time"]["chunks"] == (expected,)
    assert encoding["time"].get("shards", (expected,)) == (length,)
    assert length % encoding["t2m"]["chunks"][0] == 0


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["zstd", "blosc", "gzip", "none"])
def test_codecs_have_short_names(name, zarr_format):
    store, ds = MemoryStore(), weather()
    ds.gpuzarr.to_zarr(store, CHUNKS, SHARDS, compressors=name, zarr_format=zarr_format)
    found = zarr.open_group(store, mode="r")["t2m"].compressors
    by_name = {"zstd": "Zstd", "blosc": "Blosc", "gzip": "G", "none": ""}
    assert len(found) == (name != "none")
    assert all(type(codec).__name__.startswith(by_name[name]) for codec in found)
    if name == "blosc":
        text = str(found[0]).lower()
        assert "zstd" in text
        assert "bitshuffle" not in text
    np.testing.assert_allclose(opened(store).t2m, ds.t2m, atol=1e-9)
    assert ds.gpuzarr.encoding(CHUNKS, compressors=name, zarr_format=zarr_format)["t2m"].keys() >= {"compressors"}


@pytest.mark.parametrize(("typo", "meant"), [("shard", "shards"), ("compressor", "compressors"), ("modes", "mode")])
def test_names_of_arguments_that_were_meant_are_offered(typo, meant):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{typo}' \(perhaps '{meant}'\)"):
        weather().gpuzarr.to_zarr(MemoryStore(), **{typo: "w"})


def test_an_unknown_name_of_a_codec_is_refused():
    with pytest.raises(OptionError, match=r"names: zstd, blosc, gzip, none[\s\S]*perhaps 'blosc'"):
        weather().gpuzarr.to_zarr(MemoryStore(), CHUNKS, SHARDS, compressors="blosk")


@pytest.mark.parametrize(
    ("compressors", "zarr_format"), [(5, 3), ([5], 3), (numcodecs.Zstd(), 3), (ZstdCodec(), 2), ([ZstdCodec()], 2)]
)
def test_what_is_no_codec_of_the_format_is_refused_before_a_store_is_erased(compressors, zarr_format, tmp_path):
    xr.Dataset({"t": ("x", [1.0])}).to_zarr(tmp_path, zarr_format=zarr_format)

    with pytest.raises(OptionError, match=rf"compresses no arrays of this format[\s\S]*{CODECS_OF[zarr_format]}"):
        xr.Dataset({"u": ("x", [1.0])}).gpuzarr.to_zarr(
            tmp_path, compressors=compressors, zarr_format=zarr_format, mode="w"
        )

    assert list(xr.open_zarr(tmp_path)) == ["t"]
