"""`StoredObject`: what is stored of an object of which a write changes a part."""

from __future__ import annotations

from typing import cast

from xarray_gpuzarr.fetch.files import version_and_length
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import Edge
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import ShardIndex, decode_shard_index


@record
class StoredObject:
    """One version of a shard or of an unsharded chunk, as it is stored."""

    nbytes: int | None = None
    """Total length of its encoded chunks in bytes; None if nothing is stored, or if what is stored is not needed."""
    index: ShardIndex | None = None
    """Index of a shard; None for an unsharded chunk."""
    data: memoryview | None = None
    """All bytes of the object, as uint8 in host memory; None if it is a file."""
    version: tuple[int, ...] = ()
    """Version of a file, as `fetch.files.version_and_length` returns it; empty if the object is not a file."""


NOTHING = StoredObject()
"""An object that is not stored, or of which nothing is needed."""


def object_in_file(source: LocalSource, spec: ArraySpec, key: str) -> StoredObject:
    """Return what is stored in the file of an object.

    Raises `StoreReadError` if it cannot be read, `ObjectChangedError` if it is replaced while it is read, and
    `ShardIndexError` if its index is damaged.
    """
    if spec.index is None:
        version_and_nbytes = version_and_length(source.local_path(key))
        if version_and_nbytes is None:
            return NOTHING
        version, nbytes = version_and_nbytes
        return StoredObject(nbytes=nbytes, version=version)
    read_edge = source.start_edge(key, spec.index.location, spec.index.nbytes)
    edge = read_edge()
    return NOTHING if edge is None else _stored_shard(spec, key, edge, None)


def object_in_memory(spec: ArraySpec, key: str, data: memoryview | None) -> StoredObject:
    """Return what is stored in an object whose bytes are in host memory; `data` is None if there is no object.

    Raises `ShardIndexError` if its index is damaged.
    """
    if data is None:
        return NOTHING
    if spec.index is None:
        return StoredObject(nbytes=len(data), data=data)
    edge = Edge(data=spec.index.encoded_index(data), object_nbytes=len(data), version=())
    return _stored_shard(spec, key, edge, data)


def _stored_shard(spec: ArraySpec, key: str, edge: Edge, data: memoryview | None) -> StoredObject:
    """Return what is stored in a shard, given the bytes of its index and, unless it is a file, all its bytes."""
    assert spec.index is not None
    shard_name = f"'{key}' of array '{spec.path}'"
    index = decode_shard_index(edge.data, spec.index, shard_nbytes=edge.object_nbytes, shard_name=shard_name)
    nbytes = int(index.nbytes.clip(0).sum())  # chunks that are not stored have a length of -1
    version = cast("tuple[int, ...]", edge.version)  # that of a file, or empty
    return StoredObject(nbytes=nbytes, index=index, data=data, version=version)
