"""An array of two shards whose first one is damaged, and what an error about it must say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import zarr

from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.stores.fakes import put, take
from helpers.stores.shards import chunk_bytes, with_chunk
from xarray_gpuzarr import GpuZarrError, read_array

DATA = counting((8, 12))
SHARDED = {"chunks": (2, 3), "shards": (4, 12)}
N_CHUNKS = 8
KEY = "a/t/c/0/0"


def read(array: zarr.Array, selection: Any = ...) -> np.ndarray:
    return read_array(array, selection, device="host")


def damaged(store: Any, change: Callable[[bytes], bytes], **codecs: Any) -> zarr.Array:
    """Write two shards, change the bytes of the first, and return the array."""
    array = write(store, DATA, name="a/t", **SHARDED, **codecs)
    put(store, KEY, change(take(store, KEY)))
    return array


def assert_explains(error: BaseException, *parts: str) -> None:
    """The message has its three lines and names each of `parts`."""
    assert isinstance(error, GpuZarrError)
    assert error.tried.strip()
    assert error.found.strip()
    assert error.do.strip()
    assert [part for part in parts if part not in str(error)] == []


@contextmanager
def explained(kind: type[BaseException], *parts: str, match: str | None = None) -> Iterator[None]:
    """Expect an error, which `assert_explains` takes."""
    with pytest.raises(kind, match=match) as caught:
        yield
    assert_explains(caught.value, *parts)


def assert_only_the_first_shard_is_lost(array: zarr.Array) -> None:
    """The next read works."""
    assert_same_bits(read(array, slice(4, None)), DATA[4:])


def changed_chunk(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Change chunk (1, 1) of the first shard: number 5."""
    return lambda shard: with_chunk(shard, N_CHUNKS, 5, change(chunk_bytes(shard, N_CHUNKS, 5)))


def assert_error_or(array: zarr.Array, is_right: Callable[[np.ndarray], bool]) -> None:
    """Read, and accept a package error or a result that `is_right`."""
    try:
        got = read(array)
    except GpuZarrError:
        return
    assert is_right(got)
