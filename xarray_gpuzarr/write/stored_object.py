"""`StoredObject`: where the chunks lie of an object of which a write changes a part, in one version of it."""

from __future__ import annotations

from typing import cast

from xarray_gpuzarr.fetch.local import LocalSource, version_and_length
from xarray_gpuzarr.fetch.source import Edge
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import ShardIndex, decode_shard_index


@record
class StoredObject:
    """What is stored of a shard or of an unsharded chunk."""

    nbytes: int | None = None
    """Length of its chunks together in bytes; None if nothing is stored, or needed."""
    index: ShardIndex | None = None
    """Index of a shard."""
    data: memoryview | None = None
    """All of it as uint8 in host memory, unless it is a file."""
    version: tuple[int, ...] = ()
    """Version of a file, as `fetch.local` tells it."""


NOTHING = StoredObject()


def stored_file(source: LocalSource, spec: ArraySpec, key: str) -> StoredObject:
    """Return what is stored in a file; raises `StoreReadError`, `ObjectChangedError` or `ShardIndexError`."""
    if spec.index is None:
        known = version_and_length(source.local_path(key))
        return NOTHING if known is None else StoredObject(nbytes=known[1], version=known[0])
    edge = source.start_edge(key, spec.index.location, spec.index.nbytes)()
    return NOTHING if edge is None else _shard(spec, key, edge)


def stored_bytes(spec: ArraySpec, key: str, data: memoryview | None) -> StoredObject:
    """Return what is stored in an object, given all its bytes or None if there is none; raises `ShardIndexError`."""
    if data is None:
        return NOTHING
    if spec.index is None:
        return StoredObject(nbytes=len(data), data=data)
    return _shard(spec, key, Edge(data=spec.index.encoded_index(data), object_nbytes=len(data), version=()), data)


def _shard(spec: ArraySpec, key: str, edge: Edge, data: memoryview | None = None) -> StoredObject:
    assert spec.index is not None
    where = f"'{key}' of array '{spec.path}'"
    index = decode_shard_index(edge.data, spec.index, shard_nbytes=edge.object_nbytes, shard_name=where)
    nbytes = int(index.nbytes.clip(0).sum())
    return StoredObject(nbytes=nbytes, index=index, data=data, version=cast("tuple[int, ...]", edge.version))
