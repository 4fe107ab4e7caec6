"""Write, read, append, and again, through every kind of store that can be written: reads never see what was before."""

import contextlib
import pickle
import tempfile
from itertools import count
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.every_pair import usually
from helpers.stores.remote import CLIENTS
from helpers.stores.s3_server import BUCKET, S3Server
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.codecs import ZstdCodec
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore

from xarray_gpuzarr import read_array, zarr_pipeline

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

WIDTH = 6
LAYOUTS = {
    "raw in shards": {"chunks": (2, 3), "shards": (4, 6), "compressors": None},
    "zstd in shards": {"chunks": (2, 3), "shards": (4, 6), "compressors": ZstdCodec()},
    "indexes in front": {"chunks": (1, 3), "shards": {"shape": (8, 3), "index_location": "start"}, "compressors": None},
    "zstd": {"chunks": (2, 3), "compressors": ZstdCodec()},
}
NUMBERED = count()


class Plain:
    """A store: what is written is there."""

    def __init__(self, store):
        self.store = store

    def save(self):
        """Make what was written last; return a store to go on with."""
        return self.store

    def readers(self):
        """Stores that show what was written and not saved, or all of it."""
        return [self.store]


class Icechunk:
    """A session that writes, and the repository's saved snapshots."""

    def __init__(self, directory, *, forks=False):
        self.repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(directory)))
        self._forks = forks
        self._begin()

    def _begin(self):
        self._session = self.repository.writable_session("main")
        self.store = self._session.store

    def save(self):
        self._session.commit("saved", allow_empty=True)
        self._begin()
        return self.store

    def readers(self):
        if self._forks and self._session.has_uncommitted_changes:
            with contextlib.suppress(ValueError, icechunk.IcechunkError):
                return [self.store, pickle.loads(pickle.dumps(self._session.fork())).store]
        return [self.store]

    def readers_of_saved(self):
        return [self.repository.readonly_session("main").store]


def remote(name):
    return lambda directory, server: Plain(CLIENTS[name](server.url, f"{BUCKET}/{next(NUMBERED)}.zarr"))


MKDIR = {"auto_mkdir": True}
STORES = {
    "local": lambda directory, _: Plain(LocalStore(directory / "s")),
    "memory": lambda _directory, _: Plain(MemoryStore()),
    "obstore memory": lambda _directory, _: Plain(ObjectStore(ObstoreMemory())),
    "obstore local": lambda directory, _: Plain(ObjectStore(ObstoreLocal(directory / "s", mkdir=True))),
    "fsspec memory": lambda directory, _: Plain(FsspecStore.from_url(f"memory://{directory}")),
    "fsspec local": lambda directory, _: Plain(FsspecStore.from_url(f"file://{directory}/s", storage_options=MKDIR)),
    "a wrapper": lambda directory, _: Plain(LoggingStore(LocalStore(directory / "s"), log_level="CRITICAL")),
    "obstore s3": remote("obstore s3"),
    "fsspec s3": remote("fsspec s3"),
    "icechunk": lambda directory, _: Icechunk(directory / "s"),
    "icechunk and forks": lambda directory, _: Icechunk(directory / "s", forks=True),
}


@pytest.fixture(scope="module")
def s3():
    with S3Server() as running:
        yield running


ROWS = st.tuples(st.integers(0, 11), st.integers(1, 12)).map(lambda at: slice(at[0], at[0] + at[1]))
COLUMNS = st.tuples(st.integers(0, 5), st.integers(1, 6)).map(lambda at: slice(at[0], at[0] + at[1]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), ROWS, COLUMNS),
        st.tuples(st.just("modify"), ROWS, COLUMNS),
        st.tuples(st.just("append"), st.integers(1, 5), st.just(None)),
        st.tuples(st.just("save"), st.just(None), st.just(None)),
        st.tuples(st.just("read"), ROWS, COLUMNS),
    ),
    min_size=4,
    max_size=12,
)


def assert_reads(store, expected, rows, columns):
    """Read some of an array at every door, of a handle that is new."""
    array, wanted = zarr.open_array(store, path="g/a", mode="r"), expected[rows, columns]
    for selection in ((rows, columns), ...):
        found = read_array(array, selection, device="host")
        np.testing.assert_array_equal(found, expected if selection is ... else wanted)
    ds = xr.open_dataset(store, group="g", engine="gpuzarr", device="host", consolidated=False, zarr_format=3)
    np.testing.assert_array_equal(ds.a[rows, columns].values, wanted)
    np.testing.assert_array_equal(ds.chunk().a[rows, columns].values, wanted)
    with zarr_pipeline():
        np.testing.assert_array_equal(zarr.open_array(store, path="g/a", mode="r")[rows, columns], wanted)


def follow(steps, place, layout):
    """Do what `steps` say with an array and with NumPy, and compare at every step."""
    values, saved = np.zeros((4, WIDTH)), None
    numbers = np.random.default_rng(len(steps))
    zarr.create_group(place.store, path="g")
    array = zarr.create_array(
        place.store, name="g/a", shape=values.shape, dtype="f8", dimension_names=("y", "x"), **LAYOUTS[layout]
    )
    for name, rows, columns in steps:
        if name == "write":
            new = numbers.random(values[rows, columns].shape)
            array[rows, columns] = values[rows, columns] = new
        elif name == "modify":  # what is read is written again, as a program does that corrects some values
            array[rows, columns] = read_array(array, (rows, columns), device="host") + 1
            values[rows, columns] += 1
        elif name == "append":
            array.append(numbers.random((rows, WIDTH)) if rows % 2 else np.full((rows, WIDTH), rows))
            values = np.concatenate([values, zarr.open_array(place.store, path="g/a", mode="r")[-rows:]])
        elif name == "save":
            array, saved = zarr.open_array(place.save(), path="g/a"), values.copy()
        for store in place.readers():
            assert_reads(store, values, rows if isinstance(rows, slice) else slice(3), columns or slice(2))
        if saved is not None and isinstance(place, Icechunk):
            for store in place.readers_of_saved():
                assert_reads(store, saved, slice(1, 3), slice(2, 5))


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=usually(3, full=12))
@given(steps=STEPS, layout=st.sampled_from([*LAYOUTS]))
def test_what_was_written_is_read(s3, kind, steps, layout):
    with tempfile.TemporaryDirectory() as directory:
        follow(steps, STORES[kind](Path(directory), s3), layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fresh_icechunk_repository_knows_nothing_of_another(tmp_path, layout):
    """The first snapshot has one id in all repositories."""
    for number in range(2):
        place = Icechunk(tmp_path / f"{number}")
        array = zarr.create_array(place.store, name="g/a", shape=(8, WIDTH), dtype="f8", **LAYOUTS[layout])
        array[number:] = values = np.random.default_rng(number).random((8 - number, WIDTH))
        opened = zarr.open_array(place.store, path="g/a", mode="r")

        np.testing.assert_array_equal(read_array(opened, slice(1, 2), device="host"), values[1 - number : 2 - number])


def test_what_was_not_committed_is_not_seen_by_a_session_that_only_reads(tmp_path):
    place = Icechunk(tmp_path / "s")
    array = zarr.create_array(place.store, name="g/a", shape=(8, WIDTH), dtype="f8", **LAYOUTS["raw in shards"])
    array[...] = 9.0
    place.save()
    array = zarr.open_array(place.store, path="g/a")
    array[2:] = 17.0
    assert (read_array(zarr.open_array(place.store, path="g/a", mode="r"), slice(3, 4), device="host") == 17).all()

    clean = zarr.open_array(place.repository.readonly_session("main").store, path="g/a", mode="r")

    for selection in (slice(3, 4), slice(5), ...):
        assert (read_array(clean, selection, device="host") == 9).all()
