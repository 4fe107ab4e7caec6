"""What the modelled device is given: arrays in local files, so large that beginnings and ends matter little."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.arrays.published import BLOG
from benchmarks.arrays.workloads import VOLUME, Workload
from benchmarks.training.feeds import Feed

_PUBLISHED = replace(BLOG.full, operations=("load",))
_CHUNK_64KB, _CHUNK_4MB = 16_000, 1_024_000

WORKLOADS: tuple[Workload, ...] = (
    replace(_PUBLISHED, name="published"),
    replace(
        _PUBLISHED,
        name="64 kB chunks",
        summary="1-D float32, zstd, 8 shards x 3200 chunks x 64 kB",
        shape=(8 * 3200 * _CHUNK_64KB,),
        shards=(3200 * _CHUNK_64KB,),
        chunks=(_CHUNK_64KB,),
    ),
    replace(
        _PUBLISHED,
        name="4 MB chunks",
        summary="1-D float32, zstd, 8 shards x 100 chunks x 4.1 MB",
        shape=(8 * 100 * _CHUNK_4MB,),
        shards=(100 * _CHUNK_4MB,),
        chunks=(_CHUNK_4MB,),
    ),
    replace(
        _PUBLISHED,
        name="raw",
        summary="1-D float32, no codec, 16 shards x 100 chunks x 1.024 MB",
        shape=(16 * 100 * 256_000,),
        shards=(100 * 256_000,),
        codec="none",
    ),
    replace(
        VOLUME,
        name="volume",
        summary="uint16 512 x 1024 x 1024, blosc lz4 5 shuffle, 64^3 chunks in 256^3 shards",
        shape=(512, 1024, 1024),
        chunks=(64, 64, 64),
        shards=(256, 256, 256),
        codec="blosc lz4 5 shuffle",
        operations=("load",),
    ),
    replace(
        _PUBLISHED,
        name="small shards",
        summary="1-D float32, zstd, 128 shards x 4 chunks x 1.024 MB",
        shape=(128 * 4 * 256_000,),
        shards=(4 * 256_000,),
    ),
)

FEED = Feed(
    workload=replace(
        VOLUME,
        name="training",
        summary="float32, 1 MB zstd chunks, 16 a shard; a model takes 64 batches of 16 crops of 4 x 256 x 256",
        shape=(64, 1024, 1024),
        chunks=(4, 256, 256),
        shards=(16, 512, 512),
        dtype="float32",
        codec="zstd 3",
    ),
    crop=(4, 256, 256),
    n_batches=64,
)
"""What a model is trained on."""
