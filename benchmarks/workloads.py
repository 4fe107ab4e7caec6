"""What is read: frozen descriptions of arrays and of what is done with them. `stores` writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from benchmarks.fields import FieldName

Operation = Literal["read", "load", "mean"]
"""Stored values as a NumPy array; the decoded xarray variable; its mean, NaN skipped."""

CodecName = Literal["none", "zstd", "gzip", "blosc-zstd", "blosc-lz4", "blosclz-bitshuffle"]


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
    summary: str
    """One line for the report."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """Shape of an inner chunk, elements."""
    shards: tuple[int, ...] | None = None
    """Shape of a shard, elements; None if each chunk is an object."""
    dtype: str
    """As stored."""
    codec: CodecName
    field: FieldName
    zarr_format: Literal[2, 3] = 3
    operations: tuple[Operation, ...] = ("read",)

    def __post_init__(self) -> None:
        """Check that shards hold whole chunks."""
        if self.shards and any(s % c for s, c in zip(self.shards, self.chunks, strict=True)):
            raise ValueError(f"{self.name}: shards {self.shards} are no multiples of chunks {self.chunks}")

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
    def nbytes(self) -> int:
        """Bytes of the whole array as stored, without compression."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

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


_SERIES = Workload(
    name="",
    summary="",
    shape=(102_400_000,),
    chunks=(256_000,),
    shards=(25_600_000,),
    dtype="float32",
    codec="zstd",
    field="series",
)
_VOLUME = Workload(
    name="",
    summary="",
    shape=(256, 512, 512),
    chunks=(128, 128, 128),
    dtype="uint16",
    codec="blosc-zstd",
    field="volume",
)
_SHARDED_VOLUME = replace(_VOLUME, chunks=(32, 32, 32), shards=(256, 256, 256), operations=("read", "load"))
_SINGLE = replace(_SERIES, shape=(25_000_000,), chunks=(25_000_000,), shards=None, field="noise")
_ERA5 = Workload(
    name="era5-packed",
    summary="t2m, int16 packed, zstd, 1x181x360 chunks, 24 steps a shard, 4 % NaN",
    shape=(240, 361, 720),
    chunks=(1, 181, 360),
    shards=(24, 362, 720),
    dtype="int16",
    codec="zstd",
    field="era5",
    operations=("read", "load", "mean"),
)

WORKLOADS: tuple[Workload, ...] = (
    replace(_SERIES, name="series-1mb-zstd", summary="1-D float32, zstd, 1.024 MB chunks, 100 a shard"),
    replace(
        _SERIES, name="series-1mb-raw", summary="1-D float32, no codec, 1.024 MB chunks, 100 a shard", codec="none"
    ),
    replace(
        _SERIES,
        name="series-64kb-zstd",
        summary="1-D float32, zstd, 64 kB chunks, 1600 a shard",
        chunks=(16_000,),
    ),
    replace(_VOLUME, name="volume-blosc-zstd", summary="uint16 volume, blosc zstd 3 shuffle, 128^3 chunks"),
    replace(
        _VOLUME,
        name="volume-blosc-zstd-v2",
        summary="uint16 volume, Zarr v2, blosc zstd 3 shuffle, 128^3 chunks",
        zarr_format=2,
    ),
    replace(
        _VOLUME, name="volume-blosc-lz4", summary="uint16 volume, blosc lz4 5 shuffle, 128^3 chunks", codec="blosc-lz4"
    ),
    replace(_VOLUME, name="volume-gzip", summary="uint16 volume, gzip 5, 128^3 chunks", codec="gzip"),
    replace(_VOLUME, name="volume-zstd", summary="uint16 volume, zstd 3, 128^3 chunks", codec="zstd"),
    replace(
        _SHARDED_VOLUME,
        name="shards-blosclz",
        summary="uint16 volume, blosc blosclz 9 bitshuffle, 32^3 chunks in 256^3 shards",
        codec="blosclz-bitshuffle",
    ),
    replace(
        _SHARDED_VOLUME,
        name="shards-raw",
        summary="uint16 volume, no codec, 32^3 chunks in 256^3 shards",
        codec="none",
    ),
    replace(_SINGLE, name="single-raw", summary="float32 noise, one 100 MB chunk, no codec", codec="none"),
    replace(_SINGLE, name="single-zstd", summary="float32 noise, one 100 MB chunk, zstd"),
    _ERA5,
)
