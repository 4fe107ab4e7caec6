"""Writes to a part of a shard: what they do not touch is carried over as it is, from one version of the shard."""

import gzip
import os
import threading
import time
from unittest.mock import Mock

import numpy as np
import obstore
import pytest
import zarr
from helpers.data.corpus import counting
from helpers.stores.fakes import put, take
from helpers.traced import takes_less_than
from helpers.writes import writes_counted
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import (
    CorruptChunkError,
    GpuZarrWarning,
    ShardIndexError,
    StoreReadError,
    StoreWriteError,
    zarr_pipeline,
)
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.native.library import crc32c
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec, decode_shard_index
from xarray_gpuzarr.write.call import WriteCall

DATA = counting((8, 12), "i4")
INDEX = ShardIndexSpec(n_chunks=12, location="end", endian="little", checksum=True)
LAYOUT = {"chunks": (2, 4), "shards": (8, 12)}


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    """A store whose objects the loops replace, and one that is handed them."""
    return LocalStore(tmp_path / "a") if request.param == "files" else MemoryStore()


def _array(store, data=DATA, **keywords):
    """Write an array by zarr-python, and open it with the pipeline."""
    chosen = {"compressors": ZstdCodec(level=1), **LAYOUT} | keywords
    zarr.create_array(store, data=data, **chosen)
    with zarr_pipeline():
        return zarr.open_array(store)


def _chunks(store, key="c/0/0"):
    """Return the encoded bytes of each chunk of a shard."""
    shard = take(store, key)
    index = decode_shard_index(shard[-INDEX.nbytes :], INDEX, shard_nbytes=len(shard), shard_name=key)
    return [shard[at : at + n] if n >= 0 else None for at, n in zip(index.offset, index.nbytes, strict=True)]


def test_other_chunks_are_carried_over_as_they_are_encoded(store):
    array = _array(store, compressors=[ZstdCodec(level=9, checksum=True)])
    before = _chunks(store)

    array[2:4, 3:8] = -1

    after = _chunks(store)
    assert [i for i in range(12) if after[i] != before[i]] == [3, 4]
    expected = DATA.copy()
    expected[2:4, 3:8] = -1
    np.testing.assert_array_equal(array[...], expected)


@pytest.mark.parametrize(
    "layout", [{"chunks": (9, 2**17)}, {"chunks": (3, 2**15), "shards": (9, 2**17)}], ids=["chunk", "shard"]
)
def test_megabytes_that_replace_a_file(tmp_path, layout):
    """Which are told to the disk as they are written."""
    data = np.random.default_rng(1).integers(-9, 9, (9, 2**17), "i4")
    array = _array(LocalStore(tmp_path), np.zeros_like(data), compressors=None, **{"shards": None} | layout)

    for where in (..., slice(2, 4)):
        data = -data
        array[where] = data[where]
        np.testing.assert_array_equal(array[where], data[where])
    np.testing.assert_array_equal(array[4:], -data[4:])


def test_a_damaged_chunk_is_an_error_only_where_it_is_written_to_in_part(store):
    array, chunk = _array(store), _chunks(store)[5]
    damaged = b"\0\0\0\0" + chunk[4:]
    put(store, "c/0/0", take(store, "c/0/0").replace(chunk, damaged))

    array[0, 0] = 99

    shard = take(store, "c/0/0")
    assert _chunks(store)[5] == damaged
    assert array[0, 0] == 99
    with pytest.raises(CorruptChunkError, match=r"chunk \(1, 2\)"):
        array[2, 8] = 99
    assert take(store, "c/0/0") == shard
    array[2:4, 8:12] = 7  # all of it: what was there is not looked at
    np.testing.assert_array_equal(array[2:4], np.hstack([DATA[2:4, :8], np.full((2, 4), 7)]))


@pytest.mark.parametrize("damage", ["cut short", "checksum", "beyond the end"])
def test_a_damaged_index_is_an_error(store, damage):
    array = _array(store)
    shard = bytearray(take(store, "c/0/0"))
    if damage == "cut short":
        del shard[100:]
    elif damage == "checksum":
        shard[-1] ^= 1
    else:
        shard[-INDEX.nbytes : -INDEX.nbytes + 8] = (10**6).to_bytes(8, "little")
        shard[-4:] = crc32c(bytes(shard[-INDEX.nbytes : -4])).to_bytes(4, "little")
    put(store, "c/0/0", bytes(shard))

    with pytest.raises(ShardIndexError, match=r"c/0/0"):
        array[0, 0] = 99

    assert take(store, "c/0/0") == bytes(shard)


def test_a_chunk_that_is_longer_than_it_may_be_takes_no_memory(store):
    array, n = _array(store), 2 * 10**6
    index = np.array([[0, n]] * 12, "<u8").tobytes()
    shard = bytes(n) + index + crc32c(index).to_bytes(4, "little")
    put(store, "c/0/0", shard)

    with takes_less_than(n), pytest.raises(CorruptChunkError, match=r"chunk \(0, 0\)"):
        array[7, 11] = 99

    assert take(store, "c/0/0") == shard


@pytest.mark.parametrize("layout", [LAYOUT, {"chunks": (8, 12), "shards": None}], ids=["shard", "chunk"])
def test_a_pipe_in_place_of_a_file_is_an_error_and_not_waited_for(tmp_path, layout):
    array = _array(LocalStore(tmp_path), **layout)
    (tmp_path / "c/0/0").unlink()
    os.mkfifo(tmp_path / "c/0/0")

    with pytest.raises(StoreReadError, match="a device or a pipe"):
        array[0, 0]
    with pytest.raises(StoreWriteError, match="a device or a pipe"):
        array[0, 0] = 99


def test_frames_that_only_zarr_decodes_are_written_by_it(store):
    """A gzip file of two members, of which the loops know the first."""
    array = _array(store, data=np.arange(8, dtype="i4"), chunks=(8,), shards=None, compressors=GzipCodec())
    raw = np.arange(8, dtype="<i4").tobytes()
    put(store, "c/0", gzip.compress(raw[:12]) + gzip.compress(raw[12:]))

    with writes_counted() as counts:
        array[0] = 99

    assert counts == [0, 1]
    assert array[...].tolist() == [99, 1, 2, 3, 4, 5, 6, 7]


def test_a_chunk_of_no_bytes_stays_one(store):
    """It is damaged, and not to become one that was never written."""
    array = _array(store)
    shard, before = take(store, "c/0/0"), _chunks(store)
    index = bytearray(shard[-INDEX.nbytes : -4])
    index[8:16] = bytes(8)
    put(store, "c/0/0", shard[: -INDEX.nbytes] + index + crc32c(bytes(index)).to_bytes(4, "little"))

    array[7, 11] = 99

    assert _chunks(store)[:11] == [b"", *before[1:11]]
    with pytest.raises(CorruptChunkError, match=r"chunk \(0, 0\)"):
        array[0, 0]


def test_parts_of_what_is_not_there(store):
    with zarr_pipeline():
        array = zarr.create_array(store, shape=(8, 12), dtype="i4", fill_value=5, **LAYOUT)

    array[3, 4] = 1

    expected = np.full((8, 12), 5)
    expected[3, 4] = 1
    np.testing.assert_array_equal(array[...], expected)
    assert [i for i, chunk in enumerate(_chunks(store)) if chunk is not None] == [4]


def test_a_read_after_a_write_sees_it(store):
    """The index of the shard is in the cache, and lies elsewhere afterwards."""
    array = _array(store)
    if isinstance(store, LocalStore):
        os.utime(store.root / "c/0/0", (1, 1))  # old enough to be remembered
    assert array[0, 0] == DATA[0, 0]

    array[0, :] = 10**9 + np.arange(12) ** 5

    np.testing.assert_array_equal(array[0], 10**9 + np.arange(12) ** 5)
    np.testing.assert_array_equal(array[1:], DATA[1:])


def test_two_threads_in_one_shard_lose_nothing(store, monkeypatch):
    monkeypatch.setattr(advice, "warned", set())
    array = _array(store, data=np.zeros((64, 9000), "i4"), chunks=(2, 1000), shards=(64, 9000))

    def fill(first):
        for row in range(first, 64, 4):
            array[row] = row + 1

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(4)]
    with pytest.warns(
        GpuZarrWarning, match="two tasks write parts of one shard or chunk of array '/' at once"
    ) as warned:
        _run(threads)

    assert "slices at multiples of array.shards" in str(warned[0].message)  # there is no dataset to chunk
    np.testing.assert_array_equal(array[...], np.arange(1, 65)[:, None] * np.ones(9000))


def _by_fsspec(folder):
    return FsspecStore.from_url(f"file://{folder}", storage_options={"auto_mkdir": True})


def _linked(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    return LocalStore(link)


OPENINGS = {
    "a link": lambda folder: [LocalStore(folder), _linked(folder)],
    "a group": lambda folder: [LocalStore(folder), LocalStore(folder / "a")],
    "fsspec": lambda folder: [_by_fsspec(folder), _by_fsspec(folder)],
    "local and fsspec": lambda folder: [LocalStore(folder), _by_fsspec(folder)],
    "fsspec twice": lambda _: [FsspecStore.from_url("memory://twice") for _ in range(2)],
    "one dictionary": lambda _: [*map(MemoryStore, [{}] * 2)],
    "one client": lambda _: [*map(ObjectStore, [obstore.store.MemoryStore()] * 2)],
}
"""Two stores with one array, opened in different ways."""


@pytest.mark.filterwarnings("ignore::xarray_gpuzarr.GpuZarrWarning")
@pytest.mark.parametrize("kind", OPENINGS)
def test_stores_that_are_opened_twice_lose_nothing(tmp_path, kind):
    (tmp_path / "store").mkdir()
    stores, paths = OPENINGS[kind](tmp_path / "store"), ["a", "" if kind == "a group" else "a"]
    layout = {"shape": (200_000,), "chunks": (1000,), "shards": (200_000,), "dtype": "f8"}
    zarr.create_array(stores[0], name="a", **layout, overwrite=True)
    with zarr_pipeline():
        arrays = [zarr.open_array(each, path=path, mode="r+") for each, path in zip(stores, paths, strict=True)]

    def fill(which):
        for at in range(50_000 * which, 200_000, 100_000):
            arrays[which][at : at + 50_000] = 1 + which

    _run([threading.Thread(target=fill, args=(which,)) for which in range(2)])

    assert (zarr.open_array(stores[0], path="a")[...] == np.repeat([1, 2, 1, 2], 50_000)).all()


def test_threads_of_two_writes_keep_the_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "2")
    data = np.random.default_rng(0).integers(0, 99, 2_000_000)
    layout = {"shape": data.shape, "chunks": (10_000,), "shards": data.shape, "compressors": ZstdCodec(level=12)}
    stores = [tmp_path / "first", tmp_path / "second"]
    for store in stores:
        zarr.create_array(store, dtype=data.dtype, **layout)
    with zarr_pipeline():
        arrays = [zarr.open_array(store, mode="r+") for store in stores]
    threads = [threading.Thread(target=array.__setitem__, args=(..., data)) for array in arrays]
    n_active = []

    for thread in threads:
        thread.start()
        time.sleep(0.1)
    while all(thread.is_alive() for thread in threads):
        n_active.append(crew.n_active)
        time.sleep(0.01)
    for thread in threads:
        thread.join()

    assert np.median(n_active) == 2  # the helper of the first has left, early on
    assert crew.n_active == 0


def test_points_of_another_thread_are_not_lost(tmp_path):
    """They are written by zarr-python, a part of the same shard."""
    array = _array(tmp_path / "a", data=np.zeros((64, 9000), "i4"), chunks=(2, 1000), shards=(64, 9000))

    def rows():
        for row in range(0, 64, 2):
            array[row] = 1

    def points():
        for row in range(1, 64, 8):
            array.vindex[np.full(9000, row), np.arange(9000)] = 1

    _run([threading.Thread(target=rows), threading.Thread(target=points)])

    found = array[...]
    assert found[::2].all()
    assert found[1::8].all()


def _run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_shard_that_is_replaced_meanwhile_is_written_again(tmp_path, monkeypatch):
    array, to_files, n_calls = _array(tmp_path / "a"), WriteCall.to_files, []

    def replaced(call, *arguments, **keywords):
        n_calls.append(1)
        if len(n_calls) < 4:
            raise changed_error("c/0/0", None, None)
        to_files(call, *arguments, **keywords)

    monkeypatch.setattr(WriteCall, "to_files", replaced)
    array[0, 0] = 99
    assert (len(n_calls), array[0, 0]) == (4, 99)

    monkeypatch.setattr(WriteCall, "to_files", Mock(side_effect=changed_error("c/0/0", None, None)))
    with pytest.raises(StoreWriteError, match="another process replaces them"):
        array[0, 0] = 100


def test_no_two_versions_are_mixed(tmp_path):
    """Another writer replaces the shard again and again: all but what is written is of one of its versions."""
    layout = {"chunks": (50, 40), "shards": (400, 400), "compressors": ZstdCodec(level=1)}
    array = _array(tmp_path / "a", data=np.ones((400, 400), "i4") + np.arange(400, dtype="i4") * 10, **layout)
    path, shards = tmp_path / "a/c/0/0", []
    for version in range(1, 5):
        whole = np.full((400, 400), version, "i4") + np.arange(400, dtype="i4") * 10
        zarr.create_array(tmp_path / f"v{version}", data=whole, **layout)
        shards.append((tmp_path / f"v{version}/c/0/0").read_bytes())
    stop = threading.Event()

    def replace():
        for number in range(10**6):
            if stop.is_set():
                return
            new = path.with_suffix(".new")
            new.write_bytes(shards[number % 4])
            new.replace(path)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(60):
            try:
                array[7, 7] = -1
            except StoreWriteError:
                continue
            found = zarr.open_array(tmp_path / "a")[...]
            rest = np.delete((found - np.arange(400, dtype="i4") * 10).reshape(-1), 7 * 400 + 7)
            assert len(np.unique(rest)) == 1
    finally:
        stop.set()
        thread.join()


def test_what_another_writes_meanwhile_is_not_lost(tmp_path):
    """A shard is replaced after chunks of it were carried over, and before the new one takes its place."""
    slow = {"chunks": (1, 2**17), "shards": (4, 2**17), "compressors": ZstdCodec(level=19), "fill_value": 9}
    array = _array(tmp_path / "a", np.zeros((4, 2**17), "i4"), **slow)
    folder, other = tmp_path / "a/c/0", tmp_path / "other"
    theirs = np.repeat([[5], [6], [7], [8]], 2**17, axis=1).astype("i4")
    zarr.create_array(other, data=theirs, **slow)
    written = threading.Event()

    def replace():
        while not written.is_set():
            if len(list(folder.iterdir())) > 1:
                (other / "c/0/0").replace(folder / "0")
                return

    thread = threading.Thread(target=replace)
    thread.start()
    mine = np.random.default_rng(0).integers(0, 9, 2**17, "i4")
    array[1] = mine
    written.set()
    thread.join()

    assert not (other / "c/0/0").exists(), "the shard was not replaced while it was written"
    theirs[1] = mine
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], theirs)
