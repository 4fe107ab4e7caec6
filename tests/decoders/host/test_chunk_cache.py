"""Decoded chunks that are kept: the values are those of a read without them, of the version that is stored now."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting
from helpers.interrupts import interrupt, interrupting, then_interrupt
from helpers.loops import without_loops
from helpers.stores.fakes import RecordingStore
from helpers.stores.in_place import overwrite_in_place
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_s3
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import BZ2, Delta, Shuffle, Zlib
from obstore.store import LocalStore as ObstoreLocal
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import xarray_gpuzarr
from xarray_gpuzarr import FetchOptions, batches, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.host import HostDecoder, chunk_cache
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import Counts, counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.turns import Turns, turns

pytestmark = pytest.mark.timeout(60)

DATA = np.random.default_rng(0).integers(0, 500, (48, 40, 50)).astype("i2")
CHUNKS, SHARDS = (24, 20, 50), (48, 40, 50)


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch):
    """No chunk is known, and files are taken to be old at once."""
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    monkeypatch.setattr(chunk_cache, "cache", chunk_cache.ChunkCache())
    index_cache.cache.clear()
    yield
    index_cache.cache.clear()


def written(path, *, shards=SHARDS, compressors="auto", data=DATA):
    array = zarr.create_array(
        path, data=data, chunks=CHUNKS, shards=shards, compressors=compressors, overwrite=True, name="v"
    )
    return zarr.open_array(path, path="v", mode="r") if isinstance(path, os.PathLike) else array


def hits(read):
    """Return how many chunks a read finds decoded, and how many it looks for in vain."""
    before = counters.snapshot()
    read()
    counts = counters.snapshot() - before
    return counts.n_cache_hits, counts.n_cache_misses


def n_kept():
    return len(chunk_cache.cache.entries)


LAYOUTS = {
    "shards of zstd": {"compressors": ZstdCodec()},
    "shards of Blosc": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=2)},
    "shards of gzip": {"compressors": GzipCodec()},
    "files of zstd": {"compressors": ZstdCodec(), "shards": None},
    "files of gzip": {"compressors": GzipCodec(), "shards": None},
}


@pytest.mark.both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loop_over_planes_decodes_each_chunk_once_or_twice(tmp_path, layout):
    array = written(tmp_path, **LAYOUTS[layout])

    def loop():
        for i in range(48):
            assert_same_bits(read_array(array, i, device="host"), DATA[i])

    n_hits, n_misses = hits(loop)
    assert n_hits + n_misses == 96
    assert n_misses <= 8
    assert hits(loop) == (96, 0)


@pytest.mark.both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_found_counts_as_found_and_not_as_decoded(tmp_path, layout):
    array = written(tmp_path, **LAYOUTS[layout])
    box = np.s_[:, 1:40, 1:50]  # cuts all chunks
    for _ in range(2):
        read_array(array, box, device="host")
    before = counters.snapshot()

    read_array(array, (3, slice(20)), device="host")  # one chunk, by a single call if that can be
    read_array(array, box, device="host")

    counts = counters.snapshot() - before
    assert counts.n_cache_hits == 5
    assert (counts.decoded_nbytes, counts.cached_nbytes) == (0, 5 * np.prod(CHUNKS) * 2)


def test_decoded_bytes_are_those_of_the_chunks_that_were_not_found(tmp_path):
    array = written(tmp_path, compressors=GzipCodec())
    read_array(array, (slice(3), slice(20)), device="host")
    before = counters.snapshot()

    read_array(array, slice(3), device="host")

    counts = counters.snapshot() - before
    assert counts.decoded_nbytes == counts.cached_nbytes == np.prod(CHUNKS) * 2


def test_whole_chunks_are_neither_looked_for_nor_kept(tmp_path):
    array = written(tmp_path)

    for selection in (..., slice(24), (slice(24, 48), slice(20)), (slice(24), slice(20, None), slice(0, 99))):
        assert hits(lambda selection=selection: read_array(array, selection, device="host")) == (0, 0)
    assert n_kept() == 0


def test_the_end_of_an_array_inside_of_a_chunk_is_no_part(tmp_path):
    array = written(tmp_path, data=DATA[:30, :, :33])

    assert hits(lambda: read_array(array, (slice(24, 30), slice(None), slice(33)), device="host")) == (0, 0)


def test_only_chunks_that_are_cut_are_kept(tmp_path):
    array = written(tmp_path, compressors=GzipCodec())

    assert hits(lambda: read_array(array, slice(0, 30), device="host")) == (0, 2)
    assert n_kept() == 2


def test_raw_chunks_are_not_kept(tmp_path):
    array = written(tmp_path, compressors=None)

    assert [hits(lambda: read_array(array, 3, device="host")) for _ in range(3)] == [(0, 0)] * 3


def stored_versions(store):
    """Return stores of the same local files, by how they are opened."""
    return {"local": LocalStore(store), "obstore": ObjectStore(ObstoreLocal(store))}


@pytest.mark.both_ways
@pytest.mark.parametrize("shards", [SHARDS, None])
@pytest.mark.parametrize("kind", ["local", "obstore"])
@pytest.mark.parametrize("way", ["replaced", "in place", "by this process", "removed"])
def test_an_object_that_is_changed_is_never_read_as_it_was(tmp_path, kind, shards, way):
    path = tmp_path / "s"
    written(path, shards=shards, compressors=GzipCodec())
    array = zarr.open_array(stored_versions(path)[kind], path="v", mode="r")
    if (kind, way) == ("obstore", "in place"):
        way = "replaced"  # obstore knows no change time
    for number in range(2, 5):
        for i in (3, 3, 4):
            read_array(array, i, device="host")
        changed(path, DATA * number, shards, way)
        expected = np.zeros_like(DATA) if way == "removed" else DATA * number
        try:
            values = read_array(array, 3, device="host")
        except xarray_gpuzarr.StoreReadError:  # a shard that has disappeared is an error once
            assert way == "removed"
            values = read_array(array, 3, device="host")
        assert_same_bits(values, expected[3])
        if (kind, shards, way) != ("obstore", None, way) and way != "removed":  # which are not kept
            read_array(array, 3, device="host")
            assert hits(lambda: read_array(array, 5, device="host")) == (2, 0)
        written(path, shards=shards, compressors=GzipCodec(), data=expected)


def changed(path, data, shards, way):
    if way == "by this process":
        with zarr_pipeline():
            zarr.open_array(path, path="v", mode="r+")[...] = data
        return
    if way == "removed":
        for file in path.rglob("c/*/*/*"):
            file.unlink()
        return
    if way == "replaced":
        written(path, shards=shards, compressors=GzipCodec(), data=data)
        return
    written(path.parent / "new", shards=shards, compressors=GzipCodec(), data=data)
    overwrite_in_place(path, path.parent / "new")


def test_a_file_that_was_just_written_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", 2)
    for shards in (None, SHARDS):
        array = written(tmp_path, shards=shards, compressors=GzipCodec())
        for _ in range(3):
            assert_same_bits(read_array(array, 3, device="host"), DATA[3])

    assert n_kept() == 0


def test_a_file_that_is_replaced_while_it_is_decoded_is_not_kept(tmp_path, monkeypatch):
    array = written(tmp_path, shards=None, compressors=GzipCodec())
    read_rows = LoopOutput.read_rows

    def read_then_replace(*arguments):
        n_left = read_rows(*arguments)
        written(tmp_path, shards=None, compressors=GzipCodec(), data=DATA + 1)
        return n_left

    with monkeypatch.context() as patch:
        patch.setattr(LoopOutput, "read_rows", read_then_replace)
        read_array(array, 3, device="host")

    assert n_kept() == 0
    assert_same_bits(read_array(array, 3, device="host"), DATA[3] + 1)


def test_an_object_of_memory_bears_no_version_and_is_not_kept():
    array = written(MemoryStore(), compressors=GzipCodec())

    assert [hits(lambda: read_array(array, 3, device="host")) for _ in range(3)] == [(0, 0)] * 3


@pytest.mark.parametrize(("shards", "settled_s"), [(None, -1e9), (None, 1e9), (SHARDS, 1e9)])
def test_chunks_of_a_server_that_cannot_be_kept_are_not_claimed(tmp_path, monkeypatch, shards, settled_s):
    written(tmp_path, shards=shards)
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", settled_s)
    array = zarr.open_array(ObjectStore(ObstoreLocal(tmp_path)), path="v", mode="r")
    claimed, find = [], chunk_cache.cache.find

    def recorded(*arguments, **keywords):
        found = find(*arguments, **keywords)
        claimed.extend(found[1])
        return found

    monkeypatch.setattr(chunk_cache.cache, "find", recorded)
    for _ in range(2):
        assert_same_bits(read_array(array, 3, device="host"), DATA[3])

    assert claimed == []  # other reads would wait for the end of this one
    assert n_kept() == 0


def test_what_is_asked_of_a_store_for_a_chunk_that_is_known_is_one_byte(tmp_path):
    written(tmp_path, compressors=GzipCodec())
    store = RecordingStore(ObjectStore(ObstoreLocal(tmp_path)))
    array = zarr.open_array(store, path="v", mode="r")
    for i in (3, 4):
        read_array(array, i, device="host")
    before = counters.snapshot()

    assert_same_bits(read_array(array, 5, device="host"), DATA[5])

    assert (counters.snapshot() - before).n_cache_hits in (0, 2)  # a wrapper may hide the versions
    array = zarr.open_array(ObjectStore(ObstoreLocal(tmp_path)), path="v", mode="r")
    for i in (3, 4):
        read_array(array, i, device="host")
    assert hits(lambda: read_array(array, 5, device="host")) == (2, 0)


def piped(path):
    with zarr_pipeline():
        array = zarr.open_array(path, path="v", mode="r")
    return lambda i: array[i]


DOORS = {
    "read_array": lambda path: lambda i: read_array(zarr.open_array(path, path="v", mode="r"), i, device="host"),
    "lazy": lambda path: opened(path, None),
    "dask": lambda path: opened(path, {"dim_0": 1}),
    "pipeline": piped,
}


def opened(path, chunks):
    ds = xr.open_dataset(path, engine="gpuzarr", device="host", chunks=chunks, cache=False, consolidated=False)
    return lambda i: ds.v[i].values


@pytest.fixture
def named(tmp_path):
    """A store whose array has names of dimensions and is packed."""
    group = zarr.create_group(tmp_path)
    array = group.create_array(
        "v", data=DATA, chunks=CHUNKS, compressors=GzipCodec(), dimension_names=["dim_0", "dim_1", "dim_2"]
    )
    array.attrs["scale_factor"] = 0.5
    return tmp_path


@pytest.mark.filterwarnings("ignore:The specified chunks separate")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_uses_the_cache(named, door):
    read = DOORS[door](named)
    read(3)

    assert hits(lambda: read(4)) == (2, 0)
    scale = 0.5 if door in ("lazy", "dask") else 1
    assert np.array_equal(read(5), DATA[5] * scale)
    assert next(iter(chunk_cache.cache.entries._entries.values())).memory.nbytes == 2 * np.prod(CHUNKS)


def test_batches_use_the_cache(named):
    ds = xr.open_dataset(named, engine="gpuzarr", device="host", consolidated=False, cache=False)
    values = [batch.v.values for batch in batches(ds, sizes={"dim_0": 2}, batch=2)]

    assert np.array_equal(np.concatenate(values).reshape(DATA.shape), DATA * 0.5)
    assert hits(lambda: list(batches(ds, sizes={"dim_0": 2}, batch=2)))[1] == 0
    assert n_kept() == 4


def test_other_decoders_keep_nothing(tmp_path):
    array = written(tmp_path, compressors=GzipCodec())
    stored = xarray_gpuzarr.read.stored_array(array)

    for _ in range(3):
        xarray_gpuzarr.read.read(stored, 3, HostDecoder(keeps_chunks=False))

    assert n_kept() == 0


@pytest.mark.both_ways
@pytest.mark.parametrize(
    ("filters", "compressor"),
    [((Delta("<i2"),), Zlib()), ((Shuffle(2),), Zlib()), ((), BZ2()), ((Delta("<i2"),), BZ2())],
)
def test_filters_and_codecs_of_python_are_kept_decoded(tmp_path, filters, compressor):
    array = zarr.create_array(
        tmp_path, data=DATA, chunks=CHUNKS, filters=filters or None, compressors=compressor, zarr_format=2
    )
    read_array(array, 0, device="host")

    assert hits(lambda: read_array(array, 0, device="host"))[0] == 2
    for key in (3, (slice(20, 30), slice(None), slice(None, None, 7)), ([0, 47], slice(None), [3, 3, 1])):
        assert_same_bits(read_array(array, key, device="host"), zarr.open_array(tmp_path).oindex[key])


def test_memory_is_bounded_and_the_chunk_used_longest_ago_goes(tmp_path, monkeypatch):
    nbytes = 2 * int(np.prod(CHUNKS)) + 512
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=2 * nbytes + 100))
    array = written(tmp_path, compressors=GzipCodec())

    def chunk(i, j):
        return lambda: read_array(array, (i * 24 + 1, slice(j * 20, j * 20 + 5)), device="host")

    assert [hits(chunk(*at))[0] for at in ((0, 0), (0, 1), (0, 0), (1, 0), (0, 0), (0, 1))] == [0, 0, 1, 0, 1, 0]
    assert chunk_cache.cache.entries.nbytes == 2 * nbytes


@pytest.mark.parametrize("limit", [1000, 2 * int(np.prod(CHUNKS)) + 512])
@pytest.mark.parametrize("shards", [SHARDS, None])
def test_chunks_that_would_fill_most_of_it_are_not_kept_and_count_as_not_found(tmp_path, monkeypatch, limit, shards):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=limit))
    array = written(tmp_path, shards=shards, compressors=GzipCodec())

    assert [hits(lambda: read_array(array, (3, slice(5)), device="host")) for _ in range(3)] == [(0, 1)] * 3
    assert hits(lambda: read_array(array, slice(30), device="host")) == (0, 2)  # two chunks are cut
    assert hits(lambda: read_array(array, (slice(24), slice(20)), device="host")) == (0, 0)
    assert hits(lambda: read_array(array, device="host")) == (0, 0)
    assert n_kept() == 0


def test_chunks_of_one_read_that_do_not_fit_together_count_as_not_found(tmp_path, monkeypatch):
    nbytes = 2 * int(np.prod(CHUNKS)) + 512
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=3 * nbytes))
    array = written(tmp_path, compressors=GzipCodec())

    assert hits(lambda: read_array(array, np.s_[:, 1:40, 1:50], device="host")) == (0, 4)
    assert hits(lambda: read_array(array, 3, device="host")) == (0, 2)


def test_missing_chunks_that_do_not_fit_are_not_sought(tmp_path, monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=1000))
    array = zarr.create_array(tmp_path, shape=DATA.shape, dtype="i2", chunks=CHUNKS, shards=SHARDS)
    array[:24, :20] = DATA[:24, :20]

    assert hits(lambda: read_array(array, 3, device="host")) == (0, 1)


def test_without_a_cache_nothing_is_sought(tmp_path, monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=0))
    array = written(tmp_path, compressors=GzipCodec())

    assert [hits(lambda: read_array(array, (3, slice(5)), device="host")) for _ in range(3)] == [(0, 0)] * 3


def test_raw_chunks_are_not_sought_even_if_they_would_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=1000))
    array = written(tmp_path, compressors=None)

    assert hits(lambda: read_array(array, (3, slice(5)), device="host")) == (0, 0)


def test_explain_says_what_to_do_about_chunks_that_do_not_fit(named, monkeypatch):
    ds = xr.open_dataset(named, engine="gpuzarr", device="host", consolidated=False, cache=False)
    monkeypatch.setattr(counters, "snapshot", Counts)
    assert "decoded chunks" not in ds.gpuzarr.explain().note

    monkeypatch.setattr(counters, "snapshot", lambda: Counts(n_cache_hits=374, n_cache_misses=20))
    assert "; 374 of 394 chunks were found in it." in ds.gpuzarr.explain().note

    monkeypatch.setattr(counters, "snapshot", lambda: Counts(n_cache_hits=374, n_cache_misses=620, n_cache_unfit=600))
    note = ds.gpuzarr.explain().note
    assert "; 374 of 994 chunks were found in it. 600 chunks were too much for it: raise cache_nbytes." in note


@pytest.mark.parametrize("limit", [0, 100_000])
def test_a_lower_limit_holds_from_the_next_read_on(tmp_path, monkeypatch, limit):
    array = written(tmp_path, compressors=GzipCodec())
    read_array(array, 3, device="host")
    assert n_kept() == 2

    monkeypatch.setattr(options.in_force, "options", FetchOptions(cache_nbytes=limit))
    read_array(array, device="host")

    assert chunk_cache.cache.entries.nbytes <= limit


def test_single_elements_of_many_chunks_leave_nothing(tmp_path):
    data = np.random.default_rng(0).integers(0, 500, (32, 64, 64)).astype("i4")
    array = zarr.create_array(tmp_path, data=data, chunks=(8, 32, 64), shards=(32, 64, 64), compressors=ZstdCodec())
    points = [np.array([1, 9, 17, 25]), np.array([0, 40, 0, 40]), np.array([1, 2, 3, 4])]
    ds = xr.Variable(("x", "y", "z"), data)

    read = [read_array(array, tuple(int(c[i]) for c in points), device="host") for i in range(4)]

    assert read == [ds.values[tuple(c[i] for c in points)] for i in range(4)]
    assert n_kept() == 0


def test_threads_that_want_one_chunk_at_a_time_decode_it_once(tmp_path, monkeypatch):
    array = written(tmp_path, compressors=GzipCodec())
    read_rows, n_calls, all_there = LoopOutput.read_rows, [], threading.Event()

    def slowly(*arguments):
        n_calls.append(1)
        all_there.wait(0.3)
        return read_rows(*arguments)

    monkeypatch.setattr(LoopOutput, "read_rows", slowly)
    monkeypatch.setattr("xarray_gpuzarr.process.threads.n_cores", lambda: 8)
    with ThreadPoolExecutor(8) as pool:
        planes = list(pool.map(lambda i: read_array(array, (i, slice(20)), device="host"), range(8)))

    assert_same_bits(np.stack(planes), DATA[:8, :20])
    assert len(n_calls) == 1


def test_a_read_that_fails_leaves_its_chunks_to_others(tmp_path, monkeypatch):
    array = written(tmp_path, compressors=GzipCodec())

    with monkeypatch.context() as patch:
        patch.setattr(LoopOutput, "read_rows", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read_array(array, 3, device="host")

    with ThreadPoolExecutor(2) as pool:
        for plane in pool.map(lambda _: read_array(array, 3, device="host"), range(4)):
            assert_same_bits(plane, DATA[3])
    assert n_kept() == 2


def whose_claim_ends_interrupted(*arguments):
    cached = cached_read(*arguments)
    cached.end_claim = then_interrupt(cached.end_claim)
    return cached


cached_read = host.cached_read
INTERRUPTED = {
    "as its turn begins": (Turns, "begin", then_interrupt(Turns.begin)),
    "as it gets memory": (HostDecoder, "empty", interrupt),
    "as it decodes": (LoopOutput, "read_rows", interrupt),
    "as it no longer counts": (crew, "lone_threads", interrupting(set, "discard")),
    "as its claim ends": (host, "cached_read", whose_claim_ends_interrupted),
}


@pytest.mark.parametrize(("owner", "name", "value"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_read_that_is_interrupted_has_no_claim_no_turn_and_no_thread(tmp_path, monkeypatch, owner, name, value):
    array = written(tmp_path, compressors=GzipCodec())
    monkeypatch.setattr(owner, name, value)

    with pytest.raises(KeyboardInterrupt):
        read_array(array, 3, device="host")

    assert all(claim.has_ended for claim in chunk_cache.cache._claims.values())
    assert not turns.holders
    assert not crew.lone_threads


def test_it_is_emptied_first_where_memory_lacks(tmp_path, monkeypatch):
    array = written(tmp_path, compressors=GzipCodec())
    read_array(array, 3, device="host")
    assert n_kept() == 2
    empty, refused = host_memory.empty, []

    def refuse_once(shape, dtype):
        if not refused:
            refused.append(1)
            raise MemoryError
        return empty(shape, dtype)

    monkeypatch.setattr(host_memory, "empty", refuse_once)

    host_memory.result_memory.empty((5,), np.dtype("i4"))

    assert n_kept() == 0


@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_begins_with_an_empty_cache(tmp_path):
    array = written(tmp_path, compressors=GzipCodec())
    read_array(array, 3, device="host")

    pid = os.fork()
    if pid == 0:
        is_right = n_kept() == 0 and np.array_equal(read_array(array, 3, device="host"), DATA[3])
        os._exit(0 if is_right and n_kept() == 2 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_another_view_of_the_same_objects_has_its_own_chunks(tmp_path):
    """The same bytes, read as another dtype."""
    array = written(tmp_path, shards=None, compressors=GzipCodec())
    for _ in range(2):
        assert_same_bits(read_array(array, 3, device="host"), DATA[3])
    document = tmp_path / "v" / "zarr.json"
    document.write_text(document.read_text().replace('"int16"', '"uint16"'))

    other = zarr.open_array(tmp_path, path="v", mode="r")

    assert_same_bits(read_array(other, 3, device="host"), DATA[3].view("u2"))


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Arrays of some layouts, as files that are old."""
    folder = tmp_path_factory.mktemp("arrays")
    return {name: written(folder / str(n), **layout) for n, (name, layout) in enumerate(LAYOUTS.items())}


AXIS = st.one_of(
    st.integers(0, 39),
    st.builds(slice, st.integers(0, 30), st.integers(0, 48), st.integers(1, 9)),
    st.lists(st.integers(0, 39), min_size=1, max_size=5),
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(LAYOUTS)), keys=st.lists(st.tuples(AXIS, AXIS, AXIS), min_size=2, max_size=5))
@pytest.mark.parametrize("loops", [True, False])
def test_any_selections_one_after_another_have_the_values_of_zarr(arrays, loops, name, keys):
    array = arrays[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
        if not loops:
            without_loops(patch)
        for key in keys:
            assert_same_bits(read_array(array, key, device="host"), np.array(array.oindex[key], order="C"))


def test_a_shard_of_another_version_is_found_out_before_its_chunks_are_used(tmp_path):
    array = written(tmp_path, compressors=GzipCodec())
    read_array(array, 3, device="host")
    written(tmp_path, compressors=GzipCodec(), data=DATA + 7)
    read = xarray_gpuzarr.fetch.snapshot.Snapshot._end_check
    errors = []

    def noting(*arguments):
        try:
            return read(*arguments)
        except ObjectChangedError as error:
            errors.append(error)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xarray_gpuzarr.fetch.snapshot.Snapshot, "_end_check", noting)
        assert_same_bits(read_array(array, 3, device="host"), DATA[3] + 7)
    assert len(errors) == 1


def test_shards_of_a_server_are_asked_about_together(tmp_path):
    """Whether shards whose chunks are kept are what they were takes one round trip, not one for each of them."""
    data, latency_s, n_shards = counting((64, 32), "i4"), 0.3, 8
    zarr.create_array(tmp_path / "bucket" / "a", data=data, chunks=(4, 4), shards=(8, 32))
    with RangeServer(tmp_path) as server:
        array = zarr.open_array(obstore_s3(server.url, "bucket/a"), mode="r")
        for latency in (0.0, latency_s):
            index_cache.cache.clear()
            server.requests()
            server.set(latency_s=latency)
            assert_same_bits(read_array(array, (slice(None), 1), device="host"), np.ascontiguousarray(data[:, 1]))
        requests = server.requests()
    assert [each["range"].startswith("bytes=-") for each in requests] == [True] * n_shards + [False] * n_shards
    for each in requests[n_shards:]:
        first, last = each["range"].removeprefix("bytes=").split("-")
        assert first == last
    times = [each["time"] for each in requests[n_shards:]]
    assert max(times) - min(times) < (n_shards - 1) * latency_s / 2


@pytest.mark.parametrize("shards", [SHARDS, None])
def test_readers_never_see_less_than_was_written_before_they_began(tmp_path, shards):
    """A writer replaces all objects again and again: a plane is of one version of each, and of none from before."""
    array, done, stop, wrong = written(tmp_path, shards=shards, compressors=GzipCodec()), [0], threading.Event(), []

    def write():
        for number in range(1, 25):
            with zarr_pipeline():
                zarr.open_array(tmp_path, path="v", mode="r+")[...] = DATA + number * 1000
            done[0] = number
            stop.wait(0.01)  # two versions of a file have different times
        stop.set()

    def read():
        i = 0
        while not stop.is_set():
            i, before = (i + 1) % 48, done[0]
            versions = (read_array(array, i, device="host") - DATA[i]) // 1000
            ends = [(int(chunk.min()), int(chunk.max())) for chunk in (versions[:20], versions[20:])]
            wrong.extend((i, before, *end) for end in ends if not before <= end[0] == end[1] <= done[0] + 1)

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert_same_bits(read_array(array, 3, device="host"), DATA[3] + 24 * 1000)


@pytest.mark.parametrize("shards", [None, (4, 160, 160)], ids=["files", "a shard"])
def test_raw_chunks_that_are_unpacked_are_kept_as_a_whole(shards, tmp_path):
    """Of a long raw chunk a read takes just the wanted bytes, unless all of it is to be kept."""
    values = np.random.default_rng(1).integers(-9999, 9999, (4, 160, 160)) * 0.01
    encoding = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768, "chunks": (1, 160, 160), "compressors": None}
    encoding |= {} if shards is None else {"shards": shards}
    ds = xr.Dataset({"v": (("t", "y", "x"), values)})
    ds.to_zarr(tmp_path, encoding={"v": encoding}, zarr_format=3, consolidated=False)
    with xr.open_dataset(tmp_path, engine="zarr", consolidated=False) as stock:
        expected = stock.v.values
    opened = xr.open_dataset(tmp_path, engine="gpuzarr", device="host", consolidated=False, cache=False)

    for first in range(6):
        for box in (np.s_[:, 10 + first : 12 + first, 3:9], np.s_[:, first:120, 3:150]):
            assert_same_bits(opened.v[box].values, expected[box])
