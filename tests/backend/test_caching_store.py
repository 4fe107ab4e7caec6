"""The store that stands between zarr-python and a slow one while something is opened."""

import asyncio

import pytest
from helpers.stores.fakes import FailAfter, RecordingStore, ScriptedStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.caching_store import CachingStore

PARTS = [(RangeByteRequest(2, 5), b"234"), (OffsetByteRequest(7), b"789"), (SuffixByteRequest(2), b"89")]


@pytest.fixture
def store():
    return RecordingStore(MemoryStore({"a/c/0": cpu.Buffer.from_bytes(b"0123456789")}))


async def get(cache, key, byte_range=None):
    buffer = await cache.get(key, cpu.buffer_prototype, byte_range)
    return buffer and buffer.to_bytes()


@pytest.mark.parametrize(("part", "expected"), PARTS)
def test_parts_of_an_object_that_is_known_are_not_asked_for(store, part, expected):
    async def ask():
        cache = CachingStore(store)
        return await get(cache, "a/c/0"), await get(cache, "a/c/0", part)

    assert asyncio.run(ask()) == (b"0123456789", expected)
    assert store.requests == [("a/c/0", None)]


@pytest.mark.parametrize(("part", "expected"), PARTS)
def test_parts_of_another_object_are_asked_for(store, part, expected):
    assert asyncio.run(get(CachingStore(store), "a/c/0", part)) == expected
    assert store.requests == [("a/c/0", part)]


def test_an_answer_that_is_under_way_is_waited_for(store):
    async def ask():
        cache = CachingStore(store)
        cache.whole("a/c/0")
        return await asyncio.gather(get(cache, "a/c/0"), get(cache, "a/c/0", RangeByteRequest(0, 1)))

    assert asyncio.run(ask()) == [b"0123456789", b"0"]
    assert store.requests == [("a/c/0", None)]


def test_what_is_not_there_is_asked_for_once(store):
    async def ask():
        cache = CachingStore(store)
        return [await get(cache, "b"), await get(cache, "b"), await get(cache, "b", RangeByteRequest(0, 1))]

    assert asyncio.run(ask()) == [None, None, None]
    assert [key for key, _ in store.requests] == ["b"]


def test_what_failed_is_asked_for_again(store):
    fails = FailAfter(OSError("no access"))

    async def ask():
        cache = CachingStore(ScriptedStore(store, fails))
        with pytest.raises(OSError, match="no access"):
            await get(cache, "a/c/0")
        fails.healed = True
        return await get(cache, "a/c/0")

    assert asyncio.run(ask()) == b"0123456789"


def test_nothing_is_asked_for_once_it_is_given_up(store):
    async def ask():
        cache = CachingStore(store)
        cache.give_up()
        with pytest.raises(asyncio.CancelledError):
            await get(cache, "a/c/0")

    asyncio.run(ask())
    assert not store.requests


def test_it_is_named_as_the_store(store):
    cache = CachingStore(store)

    assert (str(cache), repr(cache)) == (str(store), repr(store))
