"""zarr's own `MemoryStore`: looked at by the thread that reads, each object once a read."""

import pickle

import pytest
import zarr
from zarr.buffer import cpu
from zarr.core.sync import sync
from zarr.storage import ManagedMemoryStore, MemoryStore

from xarray_gpuzarr.fetch import StoreSource, object_source
from xarray_gpuzarr.fetch.in_memory import MemorySource, fits_memory_source
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange

pytestmark = pytest.mark.skipif(not fits_memory_source(MemoryStore()), reason="zarr-python before 3.3 asks coroutines")


@pytest.fixture
def source():
    store = MemoryStore()
    sync(store.set("a/b", cpu.Buffer.from_bytes(b"0123456789")))
    return object_source(store)


def ranged(source, key, offset, nbytes):
    (data,) = source.start([(key, ByteRange(offset=offset, nbytes=nbytes))])(bytearray)
    return None if data is None else bytes(data)


def test_only_the_store_itself_is_read_so():
    assert isinstance(object_source(MemoryStore()), MemorySource)
    assert isinstance(object_source(ManagedMemoryStore()), StoreSource)
    assert isinstance(object_source(zarr.storage.LoggingStore(MemoryStore())), StoreSource)


@pytest.mark.parametrize(
    ("offset", "nbytes", "found"),
    [
        *((0, 10, b"0123456789"), (3, 4, b"3456"), (10, 0, b"")),
        *((0, WHOLE_OBJECT, b"0123456789"), (7, WHOLE_OBJECT, b"789"), (20, WHOLE_OBJECT, b"")),
    ],
)
def test_range_of_an_object(source, offset, nbytes, found):
    assert ranged(source, "a/b", offset, nbytes) == found


def test_missing_object(source):
    assert ranged(source, "a", 0, 1) is None
    assert source.start_edge("a", "end", 1)() is None
    assert source.start_whole("a")() is None
    whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
    assert source.start([("a", whole), ("a/b", whole)])(bytearray) == [None, b"0123456789"]


def test_a_read_sees_one_version_of_an_object(source):
    one_read = source.for_one_read()
    assert ranged(one_read, "a/b", 0, 2) == b"01"

    sync(source.store.set("a/b", cpu.Buffer.from_bytes(b"abcdefghij")))

    assert ranged(one_read, "a/b", 2, 2) == b"23"
    assert ranged(source.for_one_read(), "a/b", 2, 2) == b"cd"


def test_pickle_holds_no_bytes_of_a_read(source):
    one_read = source.for_one_read()
    ranged(one_read, "a/b", 0, 2)

    assert pickle.loads(pickle.dumps(one_read)).objects is None
