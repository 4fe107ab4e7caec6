"""What is read: frozen descriptions of arrays and of what is done with them. `stores` writes them.

These are the project's own; `published` holds those that others have published figures for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from benchmarks.arrays.compressors import Compressor
from benchmarks.arrays.fields import FieldName, make_field

Selection = Literal["chunk", "plane", "crop"]
"""Some inner chunks at random; a plane across each axis; crops of 64 elements an axis, of four fields of a series."""
Operation = Literal["read", "load", "mean", "chunks"] | Selection
"""Stored values as one array; the decoded xarray variable; its mean, NaN skipped; shard after shard (chunk after chunk
where there are none), each dropped; boxes of a selection one after another, each dropped."""
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
Regime = Literal["first", "steady", "kept"]
"""The first read of a process; of one that reads on, and drops each result, or keeps the last ones."""
REGIMES: tuple[Regime, ...] = get_args(Regime)

N_TILES = 64
"""Distinct chunks of an array, at most; the others repeat them."""
_TILES_NBYTES = 2**29
"""What all distinct chunks hold, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """CF attributes of the packed workload."""

    scale_factor: float = 0.02
    add_offset: float = 273.15
    missing: int = -32767
    """Stored in place of NaN."""


PACKING = Packing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One array in one store, and what is done with it."""

    name: str
    summary: str = ""
    """One line for the report."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """Shape of an inner chunk, elements."""
    shards: tuple[int, ...] | None = None
    """Shape of a shard, elements; None if each chunk is an object."""
    dtype: str
    """As stored."""
    codec: str
    """Compressor of inner chunks, as `Compressor.from_text` reads it."""
    field: FieldName
    zarr_format: Literal[2, 3] = 3
    operations: tuple[Operation, ...] = ("read",)

    def __post_init__(self) -> None:
        """Check that shards hold whole chunks, all of them."""
        for n, chunk, shard in zip(self.shape, self.chunks, self.shards or self.chunks, strict=True):
            if shard % chunk or -(-n // chunk) * chunk != -(-n // shard) * shard:
                raise ValueError(f"{self.name}: chunks of {chunk} in shards of {shard} along an axis of {n}")

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        return ("time", "latitude", "longitude") if self.packed else ("z", "y", "x")[-len(self.shape) :]

    @property
    def variable(self) -> str:
        """Name of the array in its group."""
        return "t2m" if self.packed else "data"

    @property
    def packed(self) -> bool:
        """Whether CF attributes change the values."""
        return self.field == "era5"

    @property
    def compressor(self) -> Compressor:
        """What `codec` names."""
        return Compressor.from_text(self.codec)

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of a stored object, elements: of a shard, else of a chunk."""
        return self.shards or self.chunks

    @property
    def itemsize(self) -> int:
        """Bytes of a stored element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array as stored, without compression."""
        return prod(self.shape) * self.itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return prod(self.chunks) * self.itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-n // chunk) for n, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def chunks_per_shard(self) -> tuple[int, ...]:
        """Chunks along each axis of a stored object."""
        return tuple(whole // chunk for whole, chunk in zip(self.whole, self.chunks, strict=True))

    def scaled(self, scale: float) -> Workload:
        """Return the same layout with about `scale` times the elements: smaller chunks, and fewer of them.

        The shares of chunk edge and chunk count are equal, so tiny scales keep several chunks in each shard.
        """
        edge = scale ** (1 / (2 * len(self.shape)))
        chunks = tuple(max(1, round(c * edge)) for c in self.chunks)
        whole = self.shards or self.shape
        per_whole = (w / c for w, c in zip(whole, self.chunks, strict=True))
        new_whole = tuple(c * max(min(2, round(n)), round(n * edge)) for c, n in zip(chunks, per_whole, strict=True))
        if self.shards is None:
            return replace(self, chunks=chunks, shape=new_whole)
        shape = tuple(n * new // w for n, w, new in zip(self.shape, self.shards, new_whole, strict=True))
        return replace(self, chunks=chunks, shards=new_whole, shape=shape)

    def tiles(self) -> npt.NDArray[Any]:
        """Return the distinct chunks: shape (n, *chunks), host memory."""
        n = min(N_TILES, prod(self.grid), max(1, _TILES_NBYTES // self.chunk_nbytes))
        return _tiles(self.field, self.chunks, self.dtype, n)

    def values(self) -> npt.NDArray[Any]:
        """Return what the array holds, made of its chunks without reading them: `shape`, host memory."""
        tiles = self.tiles()
        number = np.arange(prod(self.grid)).reshape(self.grid) % len(tiles)
        ndim = number.ndim
        order = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        padded = [n * chunk for n, chunk in zip(self.grid, self.chunks, strict=True)]
        whole = tiles[number].transpose(order).reshape(padded)
        return np.ascontiguousarray(whole[tuple(map(slice, self.shape))])


@functools.lru_cache(maxsize=2)
def _tiles(field: FieldName, chunks: tuple[int, ...], dtype: str, n: int) -> npt.NDArray[Any]:
    values = make_field(field, (n * chunks[0], *chunks[1:]))
    if field == "era5":
        packed = np.round((values - PACKING.add_offset) / PACKING.scale_factor)
        values = np.where(np.isnan(packed), PACKING.missing, packed)
    return values.astype(dtype).reshape(n, *chunks)


SERIES = Workload(
    name="series-1mb-zstd",
    summary="1-D float32, zstd, 1.024 MB chunks, 100 a shard",
    shape=(102_400_000,),
    chunks=(256_000,),
    shards=(25_600_000,),
    dtype="float32",
    codec="zstd 3",
    field="series",
)
VOLUME = Workload(
    name="volume-blosc-zstd",
    summary="uint16 volume, blosc zstd 3 shuffle, 128^3 chunks",
    shape=(256, 512, 512),
    chunks=(128, 128, 128),
    dtype="uint16",
    codec="blosc zstd 3 shuffle",
    field="volume",
)
SHARDED_VOLUME = replace(
    VOLUME,
    name="shards-blosclz",
    summary="uint16 volume, blosc blosclz 9 bitshuffle, 32^3 chunks in 256^3 shards",
    chunks=(32, 32, 32),
    shards=(256, 256, 256),
    codec="blosc blosclz 9 bitshuffle",
    operations=("read", "load"),
)
SINGLE = replace(
    SERIES,
    name="single-zstd",
    summary="float32 noise, one 100 MB chunk, zstd",
    shape=(25_000_000,),
    chunks=(25_000_000,),
    shards=None,
    field="noise",
)
ERA5 = Workload(
    name="era5-packed",
    summary="t2m, int16 packed, zstd, 1x181x360 chunks, 24 steps a shard, 4 % NaN",
    shape=(240, 361, 720),
    chunks=(1, 181, 360),
    shards=(24, 362, 720),
    dtype="int16",
    codec="zstd 3",
    field="era5",
    operations=("read", "load", "mean"),
)

WORKLOADS: tuple[Workload, ...] = (
    SERIES,
    replace(SERIES, name="series-1mb-raw", summary="1-D float32, no codec, 1.024 MB chunks, 100 a shard", codec="none"),
    replace(SERIES, name="series-64kb-zstd", summary="1-D float32, zstd, 64 kB chunks, 1600 a shard", chunks=(16_000,)),
    VOLUME,
    replace(
        VOLUME,
        name="volume-blosc-zstd-v2",
        summary="uint16 volume, Zarr v2, blosc zstd 3 shuffle, 128^3 chunks",
        zarr_format=2,
    ),
    replace(
        VOLUME,
        name="volume-blosc-lz4",
        summary="uint16 volume, blosc lz4 5 shuffle, 128^3 chunks",
        codec="blosc lz4 5 shuffle",
    ),
    replace(VOLUME, name="volume-gzip", summary="uint16 volume, gzip 5, 128^3 chunks", codec="gzip 5"),
    replace(VOLUME, name="volume-zstd", summary="uint16 volume, zstd 3, 128^3 chunks", codec="zstd 3"),
    SHARDED_VOLUME,
    replace(
        VOLUME,
        name="files-raw",
        summary="uint16 volume, no codec, 2048 files of 32^3",
        chunks=(32, 32, 32),
        codec="none",
    ),
    replace(
        SHARDED_VOLUME, name="shards-raw", summary="uint16 volume, no codec, 32^3 chunks in 256^3 shards", codec="none"
    ),
    replace(SINGLE, name="single-raw", summary="float32 noise, one 100 MB chunk, no codec", codec="none"),
    SINGLE,
    ERA5,
)

SELECTED = ("volume-blosc-zstd", "shards-blosclz", "shards-raw", "era5-packed", "single-raw", "single-zstd")
"""Names of those of which parts are read, too."""
READ_ON = (
    *("files-raw", "single-zstd", "era5-packed", "shards-blosclz", "series-64kb-zstd", "volume-blosc-zstd"),
    *("volume-blosc-lz4", "shards-raw", "series-1mb-zstd", "series-1mb-raw"),
)
"""Names of those that are read in every regime."""
