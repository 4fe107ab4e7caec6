"""Plain zarr through every kind of store: planned reads, many at once, and never what a shard held before."""

import asyncio
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from itertools import count, cycle, product

import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.http import HTTPFileSystem
from helpers.codec_pipeline import assert_same_reads, opened_by_both, reads_planned
from helpers.compare import assert_same_bits, assert_same_dataset
from helpers.data.corpus import counting, write
from helpers.data.datasets import ENCODING, weather
from helpers.every_pair import usually
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS, fsspec_s3, obstore_s3
from helpers.stores.s3_server import BUCKET, S3Server
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from s3fs import S3FileSystem
from zarr.api import asynchronous
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

from xarray_gpuzarr import StoreReadError, zarr_pipeline

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

SHAPE = (30, 40)
DATA = counting(SHAPE, "f4")
SHARDED = {"chunks": (3, 4), "shards": (15, 20)}
NUMBERED = count()
NUMBERS = ["t2m", "u10", "count", "mask", "height"]


def fill(store):
    """Write a dataset, whose numbers are one group, and arrays beside it."""
    weather().to_zarr(store, group="w", encoding=ENCODING, consolidated=True)
    write(store, DATA, name="sharded", **SHARDED)
    write(store, np.pad(DATA[:14, :19], ((16, 0), (0, 21))), name="holes", compressors=None, **SHARDED)
    write(store, DATA, name="chunks", chunks=(7, 11))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory whose ``bucket/s.zarr`` is a store."""
    path = tmp_path_factory.mktemp("served")
    fill(LocalStore(path / "bucket" / "s.zarr"))
    return path


@pytest.fixture(scope="module")
def server(directory):
    """A server of that directory that speaks HTTP, and S3 as far as reading goes."""
    with RangeServer(directory) as running:
        yield running


@pytest.fixture(scope="module")
def s3():
    """Another's S3 server, which checks keys, with such a store."""
    with S3Server() as running:
        fill(obstore_s3(running.url, f"{BUCKET}/s.zarr", running.key_id, running.secret))
        running.check_keys()
        yield running


def in_memory(store):
    fill(store)
    return store


def zip_file(directory):
    path = directory / "s.zip"
    if not path.exists():
        with ZipStore(path, mode="w") as store:
            fill(store)
    return ZipStore(path, mode="r", read_only=True)


HERE = {
    "local": lambda d: LocalStore(d / "bucket/s.zarr"),
    "memory": lambda _: in_memory(MemoryStore()),
    "zip": zip_file,
    "logging": lambda d: LoggingStore(LocalStore(d / "bucket/s.zarr"), log_level="ERROR"),
    "wrapper": lambda d: WrapperStore(LocalStore(d / "bucket/s.zarr")),
    "wrapper of memory": lambda _: WrapperStore(in_memory(MemoryStore())),
    "obstore local": lambda d: ObjectStore(ObstoreLocal(d / "bucket/s.zarr")),
    "obstore memory": lambda _: in_memory(ObjectStore(ObstoreMemory())),
    "fsspec local": lambda d: FsspecStore.from_url(f"file://{d}/bucket/s.zarr", storage_options={"auto_mkdir": False}),
    # Memory of fsspec is one for the process.
    "fsspec memory": lambda _: in_memory(FsspecStore.from_url(f"memory://{next(NUMBERED)}.zarr")),
}
SERVED = {name: lambda server, client=client: client(server.url, "bucket/s.zarr") for name, client in CLIENTS.items()}
MOTO = {
    name: lambda s3, client=client: client(s3.url, f"{BUCKET}/s.zarr", s3.key_id, s3.secret)
    for name, client in {"obstore of moto": obstore_s3, "s3fs of moto": fsspec_s3}.items()
}
PLACES = {"directory": HERE, "server": SERVED, "s3": MOTO}


def store_of(request):
    place, name = request.param
    return PLACES[place][name](request.getfixturevalue(place))


STORES = [(place, name) for place, names in PLACES.items() for name in names]
QUICK = usually([(place, name) for place, name in STORES if place != "s3"], full=STORES)
"""Without the server that takes long; its clients are those of the other one."""
everywhere = pytest.mark.parametrize("store", STORES, indirect=True, ids=[name for _, name in STORES])


@pytest.fixture
def store(request):
    return store_of(request)


OF_NO_LOOP = {"local", "memory", "zip", *(name for names in PLACES.values() for name in names if "obstore" in name)}


# ---- the same values, by planned reads


MASK = DATA % 7 == 0
READS = {
    "all": lambda a: a[...],
    "steps": lambda a: a[3:20:4, ::5],
    "one": lambda a: a[17, -1],
    "rows": lambda a: a.oindex[[29, 0, 4], slice(2, 30)],
    "points": lambda a: a.vindex[[0, 29, 14, 14], [39, 0, 7, 7]],
    "mask": lambda a: a.vindex[MASK],
    "block": lambda a: a.blocks[1, 0],
}


@pytest.mark.every_value
@everywhere
@pytest.mark.parametrize("name", ["sharded", "holes", "chunks"])
def test_reads_are_planned_and_those_of_zarr(store, name):
    both = opened_by_both(store, path=name)

    with reads_planned():
        for read in READS.values():
            assert_same_reads(both, read)


OPENED = usually([*zip(STORES, cycle([None, {}]))], full=[*product(STORES, [None, {}])])


@pytest.mark.every_value
@pytest.mark.parametrize(
    ("store", "chunks"), OPENED, indirect=["store"], ids=[f"{name}-{chunks}" for (_, name), chunks in OPENED]
)
def test_datasets_are_those_of_zarr(store, chunks):
    options = {"group": "w", "consolidated": True, "chunks": chunks}
    expected = xr.open_zarr(store, **options).load()

    with zarr_pipeline():
        opened = xr.open_zarr(store, **options)
        assert_same_dataset(opened.load(), expected)
        numbers = xr.open_zarr(store, **options)[NUMBERS].drop_vars(["time", "lat", "lon"])
    with reads_planned():
        assert_same_dataset(numbers.load(), expected[NUMBERS].drop_vars(["time", "lat", "lon"]))


# ---- many at once


@pytest.mark.parametrize("store", QUICK, indirect=True, ids=[name for _, name in QUICK])
def test_many_threads(store):
    with zarr_pipeline():
        group = zarr.open_group(store, mode="r", use_consolidated=False)
    together = threading.Barrier(8)

    def work(n):
        together.wait(20)
        return group["sharded"][n::3], group["chunks"].oindex[[n, 29 - n], 5:]

    with reads_planned(), ThreadPoolExecutor(8) as pool:
        for n, (strided, rows) in enumerate(pool.map(work, range(8))):
            assert_same_bits(strided, DATA[n::3])
            assert_same_bits(rows, DATA[[n, 29 - n], 5:])


@pytest.fixture
def fresh_sessions():
    """Let fsspec keep no session of another event loop, nor of this test's."""
    S3FileSystem.clear_instance_cache(), HTTPFileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache(), HTTPFileSystem.clear_instance_cache()


@pytest.mark.usefixtures("fresh_sessions")
@pytest.mark.parametrize("place", QUICK, ids=[name for _, name in QUICK])
def test_many_coroutines_of_the_callers_loop(request, place):
    """Stores that may be bound to the loop that they were opened on are read there, by zarr-python."""

    async def read_all():
        store = PLACES[place[0]][place[1]](request.getfixturevalue(place[0]))
        with zarr_pipeline():
            arrays = [await asynchronous.open_array(store=store, path=name, mode="r") for name in ("sharded", "chunks")]
            group = await asynchronous.open_group(store=store, mode="r", use_consolidated=False)
            arrays.append(await group.getitem("sharded"))
        reads = [array.getitem((slice(n, None, 5), slice(n, 30))) for n in range(12) for array in arrays]
        points = [array.get_orthogonal_selection(([n, 29], slice(3))) for n in range(5) for array in arrays]
        return await asyncio.gather(*reads), await asyncio.gather(*points)

    request.getfixturevalue(place[0])
    with reads_planned() if place[1] in OF_NO_LOOP else nullcontext():
        boxes, rows = asyncio.run(read_all())

    for n, found in enumerate(boxes):
        assert_same_bits(found, DATA[n // 3 :: 5, n // 3 : 30])
    for n, found in enumerate(rows):
        assert_same_bits(found, DATA[[n // 3, 29], :3])


# ---- what another process writes meanwhile


N_ROWS, N_COLUMNS = 5, 100_000
ONE_SHARD = {"chunks": (1, N_COLUMNS), "shards": (N_ROWS, N_COLUMNS), "compressors": None, "fill_value": -1}
FAR_APART = (slice(0, N_ROWS, 4), slice(None))  # more than a gap that is read through, and less than half a shard

WRITER = """
import pickle, sys, zarr
for line in iter(sys.stdin.buffer.readline, b""):
    nbytes, path, first, end = line.split()
    store = pickle.loads(sys.stdin.buffer.read(int(nbytes)))
    array = zarr.open_array(store, path=path.decode(), mode="r+")
    data = array[...]
    for value in range(int(first), int(end)):
        data[:] = value
        data[value % len(data)] = -1  # a chunk that is missing, another each time
        array[...] = data
    print("written", flush=True)
"""


@pytest.fixture(scope="module")
def writer():
    """Another process, which writes arrays."""
    with subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def values_of(number):
    """What the other process writes then."""
    column = np.full((N_ROWS, 1), number, "i4")
    column[number % N_ROWS] = -1
    return np.broadcast_to(column, (N_ROWS, N_COLUMNS))


def writing(writer, store, path):
    """Return functions that let another process write an array, again and again, and that wait until it has."""
    zarr.create_array(store, name=path, shape=(N_ROWS, N_COLUMNS), dtype="i4", overwrite=True, **ONE_SHARD)
    pickled = pickle.dumps(store)

    def write_values(first, end):
        writer.stdin.write(f"{len(pickled)} {path} {first} {end}\n".encode() + pickled)
        writer.stdin.flush()

    def wait():
        assert writer.stdout.readline() == b"written\n"

    return write_values, wait


def written_store(request, place):
    """The store that the other process writes to, beside or behind the one that is read."""
    if place == "s3":
        return MOTO["obstore of moto"](request.getfixturevalue("s3"))
    return LocalStore(request.getfixturevalue("directory") / "bucket/s.zarr")


NOT_WRITTEN = {"memory", "zip", "wrapper of memory", "obstore memory", "fsspec memory"}
WITHOUT_VERSIONS = {"logging", "wrapper", "fsspec local"}


def written_by_another(left_out):
    places = ((place, name) for place, names in PLACES.items() for name in names if name not in left_out)
    return pytest.mark.parametrize("place", [pytest.param(place, id=place[1]) for place in places])


@written_by_another(NOT_WRITTEN)
def test_a_shard_that_another_process_has_rewritten_is_read_anew(request, writer, place, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)  # indexes are kept at once
    store, path = PLACES[place[0]][place[1]](request.getfixturevalue(place[0])), f"anew/{place[1]}".replace(" ", "-")
    write_values, wait = writing(writer, written_store(request, place[0]), path)

    with zarr_pipeline():
        array = zarr.open_array(store, path=path, mode="r")
        for number in range(usually(3, full=6)):
            write_values(number, number + 1)
            wait()
            with reads_planned():
                for key in (FAR_APART, FAR_APART, ...):
                    np.testing.assert_array_equal(array[key], values_of(number)[key])


@written_by_another(NOT_WRITTEN | WITHOUT_VERSIONS)
def test_a_shard_that_another_process_rewrites_is_never_mixed_nor_stale(request, writer, place):
    store, path = PLACES[place[0]][place[1]](request.getfixturevalue(place[0])), f"mixed/{place[1]}".replace(" ", "-")
    write_values, wait = writing(writer, written_store(request, place[0]), path)
    last, seen = usually(4, full=150), [0]

    with zarr_pipeline():
        write_values(0, 1)
        wait()
        array = zarr.open_array(store, path=path, mode="r")
        write_values(1, last + 1)
        while seen[-1] != last:
            with suppress(StoreReadError):  # replaced three times during one read
                found = array[FAR_APART]
                seen.append(int(found.max()))
                np.testing.assert_array_equal(found, values_of(seen[-1])[FAR_APART])
    wait()

    assert seen == sorted(seen)
