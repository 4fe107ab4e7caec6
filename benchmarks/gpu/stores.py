"""Sharded arrays to read: a few distinct chunks, compressed once, repeated in shards that are put together by hand.

Compressing is not what is measured, and every stored copy of a chunk is decoded anew. Arrays are Zarr v3, groups of one
variable `data`, from a fixed seed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import google_crc32c
import imagecodecs
import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from benchmarks.fields import FieldName, make_field
from benchmarks.workloads import PACKING

Values = npt.NDArray[Any]

VARIABLE = "data"
N_TILES = 64
"""Distinct chunks, at most."""
INNER_CODECS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How chunks are compressed."""

    stored_as: Callable[[int], Any]
    """What zarr's metadata says, for elements of so many bytes; None for plain bytes."""
    encode: Callable[[Values], bytes]


def _blosc(cname: str, shuffle: str) -> Codec:
    number = SHUFFLES.index(shuffle)
    return Codec(
        stored_as=lambda nbytes: BloscCodec(cname=cname, clevel=5, shuffle=shuffle, typesize=nbytes),  # type: ignore[arg-type]  # names of its enums
        encode=lambda tile: bytes(imagecodecs.blosc_encode(tile, level=5, compressor=cname, shuffle=number)),
    )


CODECS: dict[str, Codec] = {
    "raw": Codec(stored_as=lambda _: None, encode=lambda tile: tile.tobytes()),
    "zstd": Codec(stored_as=lambda _: ZstdCodec(level=3), encode=numcodecs.Zstd(level=3).encode),
    "gzip": Codec(stored_as=lambda _: GzipCodec(level=5), encode=numcodecs.GZip(level=5).encode),
    "lz4": Codec(stored_as=lambda _: zarr_numcodecs.LZ4(), encode=numcodecs.LZ4().encode),
    "zlib": Codec(stored_as=lambda _: zarr_numcodecs.Zlib(level=5), encode=numcodecs.Zlib(level=5).encode),
} | {f"blosc {cname} {shuffle}": _blosc(cname, shuffle) for cname in INNER_CODECS for shuffle in SHUFFLES}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One array. Shards are cut into whole chunks, and every chunk overlaps the array."""

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """Shape of an inner chunk, elements."""
    shards: tuple[int, ...]
    """Shape of a shard, elements."""
    dtype: str
    codec: str
    """Key of `CODECS`."""
    field: FieldName

    def __post_init__(self) -> None:
        for n, chunk, shard in zip(self.shape, self.chunks, self.shards, strict=True):
            if shard % chunk or -(-n // chunk) * chunk != -(-n // shard) * shard:
                raise ValueError(f"{self.name}: chunks of {chunk} in shards of {shard} along an axis of {n}")

    @property
    def packed(self) -> bool:
        """Whether CF attributes change the values."""
        return self.field == "era5"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, decoded but not unpacked."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return prod(self.chunks) * np.dtype(self.dtype).itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // chunk) for n, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def chunks_per_shard(self) -> tuple[int, ...]:
        """Chunks along each axis of a shard."""
        return tuple(shard // chunk for shard, chunk in zip(self.shards, self.chunks, strict=True))

    def tiles(self) -> Values:
        """Return the distinct chunks: shape (n, *chunks)."""
        return _tiles(self.field, self.chunks, self.dtype, min(N_TILES, prod(self.grid)))


@functools.lru_cache(maxsize=2)
def _tiles(field: FieldName, chunks: tuple[int, ...], dtype: str, n: int) -> Values:
    values = make_field(field, (n * chunks[0], *chunks[1:]))
    if field == "era5":
        packed = np.round((values - PACKING.add_offset) / PACKING.scale_factor)
        values = np.where(np.isnan(packed), PACKING.missing, packed)
    return values.astype(dtype).reshape(n, *chunks)


class Stored:
    """An array on disk."""

    def __init__(self, layout: Layout, path: Path, files: list[Path], encoded: list[bytes]) -> None:
        self.layout = layout
        self.path = path
        self.files = files
        """Objects of the shards, in C order."""
        self.encoded = encoded
        """The distinct chunks, compressed."""

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(f.stat().st_size for f in self.files)

    @property
    def ratio(self) -> float:
        """Decoded bytes per stored byte."""
        return self.layout.nbytes / self.nbytes

    def values(self) -> Values:
        """Return what the array holds, made of its chunks without reading it back."""
        layout = self.layout
        tiles = layout.tiles()
        number = np.arange(prod(layout.grid)).reshape(layout.grid) % len(tiles)
        ndim = number.ndim
        blocks = tiles[number].transpose(
            [a for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for a in pair]
        )
        whole = blocks.reshape([n * chunk for n, chunk in zip(layout.grid, layout.chunks, strict=True)])
        return np.ascontiguousarray(whole[tuple(map(slice, layout.shape))])

    def drop_from_cache(self) -> float:
        """Ask the system to forget the shards; return the share of them that it still has in memory."""
        for file in self.files:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        return float(np.mean([in_cache for file in self.files for in_cache in _probe(file)]))


def _probe(file: Path, n: int = 32) -> Iterator[bool]:
    """Say of a few places in a file whether they can be read without the disk; asking brings none of them in."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for offset in np.linspace(0, max(0, file.stat().st_size - 4096), n).astype(int).tolist():
            try:
                yield os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                yield False
            except OSError:  # the file system cannot say: as if it were in memory
                yield True
    finally:
        os.close(descriptor)


def write(layout: Layout, folder: Path) -> Stored:
    """Write an array below `folder`."""
    path = folder / layout.name.replace(" ", "-")
    codec = CODECS[layout.codec]
    group = zarr.create_group(path)
    compressor = codec.stored_as(np.dtype(layout.dtype).itemsize)
    array = group.create_array(
        VARIABLE,
        shape=layout.shape,
        dtype=layout.dtype,
        chunks=layout.chunks,
        shards=layout.shards,
        compressors=() if compressor is None else (compressor,),
        filters=None,
        fill_value=0,
        dimension_names=[f"axis{i}" for i in range(len(layout.shape))],
        attributes=_attributes(layout),
    )
    shards = list(product(*(range(-(-n // m)) for n, m in zip(layout.shape, layout.shards, strict=True))))
    files = [path / array.path / "/".join(["c", *map(str, shard)]) for shard in shards]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        encoded = [bytes(e) for e in threads.map(codec.encode, layout.tiles())]
        list(threads.map(lambda file, shard: _write_shard(layout, encoded, file, shard), files, shards))
    return Stored(layout, path, files, encoded)


def _attributes(layout: Layout) -> dict[str, Any]:
    if not layout.packed:
        return {}
    packing = {"scale_factor": PACKING.scale_factor, "add_offset": PACKING.add_offset}
    return packing | {"_FillValue": PACKING.missing}


def _write_shard(layout: Layout, encoded: list[bytes], file: Path, shard: tuple[int, ...]) -> None:
    """Write one shard: its chunks one after another, then the index and its CRC-32C."""
    first = [s * n for s, n in zip(shard, layout.chunks_per_shard, strict=True)]
    within = np.indices(layout.chunks_per_shard).reshape(len(first), -1)
    number = np.ravel_multi_index(tuple(within + np.array(first)[:, None]), layout.grid)
    chunks = [encoded[i] for i in (number % len(encoded)).tolist()]
    nbytes = np.array([len(c) for c in chunks], "<u8")
    index = np.stack([np.cumsum(nbytes) - nbytes, nbytes], axis=1).astype("<u8").tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.writelines(chunks)
        out.write(index + int(google_crc32c.value(index)).to_bytes(4, "little"))
