"""Long raw chunks that are objects and are replaced while they are read: what is returned is of one version."""

import os
import threading
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import obstore
import pytest
import xarray as xr
import zarr
from helpers.loops import set_costs
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import FetchOptions, read_array, zarr_pipeline
from xarray_gpuzarr.process import fetch_options as options

LONG = 24 * 1024**2
"""Three parts of what the compiled loops let one thread read."""
SHORT = 1024**2
N_READS = 20


def bodies(nbytes):
    return [bytes([value]) * nbytes for value in (1, 2, 3)]


def in_files(folder, nbytes):
    """Return a store, and a function that replaces the chunk by a file that is ready, as fast as the system can."""
    store, path = LocalStore(folder / "s"), folder / "s" / "v" / "c" / "0"
    ready = [folder / f"{number}" for number in range(3)]
    for file, body in zip(ready, bodies(nbytes), strict=True):
        file.write_bytes(body)

    def replace(number):
        os.link(ready[number], folder / "next")
        (folder / "next").replace(path)

    return store, replace


def in_obstore(client, nbytes):
    versions = bodies(nbytes)
    return ObjectStore(client), lambda number: obstore.put(client, "v/c/0", versions[number])


def in_fsspec_memory(folder, nbytes):
    store, versions = FsspecStore.from_url(f"memory://{folder}"), bodies(nbytes)
    return store, lambda number: store.fs.sync_fs.pipe_file(f"{folder}/v/c/0", versions[number])


def in_memory(_, nbytes):
    store, versions = MemoryStore(), [zarr.buffer.cpu.Buffer.from_bytes(body) for body in bodies(nbytes)]
    return store, lambda number: store._store_dict.__setitem__("v/c/0", versions[number])


STORES = {
    "files": (in_files, LONG),
    "memory": (in_memory, LONG),
    "obstore files": (lambda folder, nbytes: in_obstore(ObstoreLocal(folder / "s", mkdir=True), nbytes), SHORT),
    "obstore memory": (lambda _, nbytes: in_obstore(ObstoreMemory(), nbytes), SHORT),
    "fsspec memory": (in_fsspec_memory, SHORT),
}


def by_pipeline(store):
    with zarr_pipeline():
        array = zarr.open_array(store, path="v", mode="r")
    return lambda: array[:]


def by_engine(store, chunks):
    ds = xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False, zarr_format=3, chunks=chunks)
    return lambda: ds.v.copy().values  # a copy, since xarray keeps what it has loaded


DOORS = {
    "read_array": lambda store: lambda: read_array(zarr.open_array(store, path="v", mode="r"), device="host"),
    "pipeline": by_pipeline,
    "engine": lambda store: by_engine(store, None),
    "dask": lambda store: by_engine(store, {}),
}


@pytest.fixture
def folder():
    """In memory where that is possible: files are replaced a hundred times as often."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "2")
    set_costs(monkeypatch, loop_thread_s=1e-9)
    monkeypatch.setattr(options.in_force, "options", FetchOptions(max_request_nbytes=64 * 1024))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", STORES)
def test_a_long_raw_chunk_is_of_one_version(folder, kind, door):
    make, nbytes = STORES[kind]
    store, replace = make(folder, nbytes)
    zarr.create_group(store)
    layout = {"shape": (nbytes,), "chunks": (nbytes,), "compressors": None, "dimension_names": ["x"]}
    zarr.create_array(store, name="v", dtype="u1", **layout)[...] = 1
    read, stop = DOORS[door](store), threading.Event()

    def replace_until_stopped():
        for number in cycle(range(3)):
            if stop.wait(5e-4):
                return
            replace(number)

    writer = threading.Thread(target=replace_until_stopped)
    writer.start()
    try:
        values = [read() for _ in range(N_READS)]
    finally:
        stop.set()
        writer.join()

    assert [(v.min(), v.max()) for v in values if v.min() != v.max()] == []
    assert {int(v[0]) for v in values} <= {1, 2, 3}
