"""Workloads that others have published figures for: in full, and reduced to what two cores read in seconds.

Shapes, chunks and codecs are theirs. Values are not: ours come from `fields`, so ratios differ and are reported.
Reduced ones have fewer chunks of the same kind, where that leaves enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.arrays.workloads import ERA5, SERIES, VOLUME, Workload

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
"""Chunks or shards that are read at once when a volume is read chunk by chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One published workload in two sizes."""

    full: Workload
    reduced: Workload

    def of(self, *, full: bool) -> Workload:
        """Return one of them."""
        return self.full if full else self.reduced


# ---- the GPU blog: 8 shards x 400 chunks x 1.024 MB of float32, read and multiplied; read November 2026 at
# https://github.com/TomAugspurger/cuda-streams-sample, commit 8898c89

BLOG_PRODUCTS = 76
"""Products of each shard with itself that the blog computes: `compute_matmul` of cuda-streams-sample."""
_BLOG = replace(
    SERIES,
    name="blog",
    summary="1-D float32, zstd, 8 shards x 400 chunks x 1.024 MB",
    shape=(8 * 400 * 256_000,),
    shards=(400 * 256_000,),
)
BLOG = Pair(
    full=_BLOG,
    reduced=replace(
        _BLOG,
        summary="1-D float32, zstd, 8 shards x 50 chunks x 1.024 MB",
        shape=(8 * 50 * 256_000,),
        shards=(50 * 256_000,),
    ),
)
# ---- the volume benchmark of zarrs: no codec, blosclz, blosclz in shards; https://github.com/LDeakin/zarr_benchmarks

_ZARRS = replace(
    VOLUME,
    name="zarrs-none",
    summary="uint16 1024x2048x2048, no codec, 256^3 chunks",
    shape=(1024, 2048, 2048),
    chunks=(256, 256, 256),
    codec="none",
    operations=("read", "chunks"),
)
_ZARRS_BLOSCLZ = replace(
    _ZARRS,
    name="zarrs-blosclz",
    summary="uint16 1024x2048x2048, blosclz 9 bitshuffle, 256^3 chunks",
    codec="blosc blosclz 9 bitshuffle",
)
_ZARRS_SHARDS = replace(
    _ZARRS_BLOSCLZ,
    name="zarrs-shards",
    summary="uint16 1024x2048x2048, blosclz 9 bitshuffle, 32^3 chunks in 256^3 shards",
    chunks=(32, 32, 32),
    shards=(256, 256, 256),
)


def _smaller(full: Workload) -> Pair:
    """Return a pair whose reduced one has 64 objects of 128^3, 268 MB in all."""
    summary = full.summary.replace("1024x2048x2048", "512^3").replace("256^3 ", "128^3 ")
    chunks = full.chunks if full.shards else (128,) * 3
    shards = (128,) * 3 if full.shards else None
    return Pair(full=full, reduced=replace(full, summary=summary, shape=(512,) * 3, chunks=chunks, shards=shards))


ZARRS_VOLUMES = tuple(map(_smaller, (_ZARRS, _ZARRS_BLOSCLZ, _ZARRS_SHARDS)))
# ---- the compressor study of HEFTIE: one volume, many compressors; https://heftieproject.github.io/zarr-benchmarks

_STUDY = replace(VOLUME, name="study", shape=(806, 629, 629))
_STUDY_REDUCED_SHAPE = (256, 384, 384)
_STUDY_CODECS = (
    "none",
    *(f"blosc {cname} 3 shuffle" for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")),
    *(f"blosc zstd {level} shuffle" for level in (1, 5, 9)),
    "blosc zstd 3 noshuffle",
    "blosc zstd 3 bitshuffle",
    *(f"zstd {level}" for level in (1, 3, 9, 19)),
    *(f"gzip {level}" for level in (1, 5, 9)),
)
_STUDY_CHUNKS = (32, 64, 256)
_STUDY_V2 = ("blosc zstd 3 shuffle", "zstd 3", "gzip 5")


def study() -> tuple[Pair, ...]:
    """Return the compressor study: codecs at 128^3, chunk sizes of one codec, and codecs in Zarr v2."""
    return tuple(Pair(full=w, reduced=replace(w, shape=_STUDY_REDUCED_SHAPE)) for w in _study_workloads())


def _study_workloads() -> Iterator[Workload]:
    for codec in _STUDY_CODECS:
        yield _studied(codec)
    for edge in _STUDY_CHUNKS:
        yield _studied(_STUDY.codec, edge=edge)
    for codec in _STUDY_V2:
        yield replace(_studied(codec, suffix=", v2"), zarr_format=2)


def _studied(codec: str, *, edge: int = 128, suffix: str = "") -> Workload:
    size = "" if edge == 128 else f", {edge}^3"
    return replace(
        _STUDY,
        name=f"study {codec}{size}{suffix}",
        summary=f"uint16 volume, {codec}, {edge}^3 chunks{', Zarr v2' if suffix else ''}",
        chunks=(edge,) * 3,
        codec=codec,
    )


# ---- an ERA5-like dataset, through xarray and dask

ERA5_FULL = replace(
    ERA5,
    name="era5-full",
    summary="t2m, int16 packed, zstd, 1x181x360 chunks, 24 steps a shard, 0.25 degrees, 480 steps",
    shape=(480, 721, 1440),
    shards=(24, 724, 1440),
    operations=("load", "mean"),
)


def published(*, full: bool) -> list[Workload]:
    """Return every published workload in one size, and the full-size dataset with the full ones."""
    found = [pair.of(full=full) for pair in (BLOG, *ZARRS_VOLUMES, *study())]
    return [*found, ERA5_FULL] if full else found
