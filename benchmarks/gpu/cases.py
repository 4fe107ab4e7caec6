"""All cases, the most important ones first: a run that ends early has measured those."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arrays.compressors import INNER_CODECS, SHUFFLES
from benchmarks.arrays.published import BLOG, BLOG_PRODUCTS
from benchmarks.arrays.workloads import ERA5, SHARDED_VOLUME, Workload
from benchmarks.gpu.array_reads import ArrayReads
from benchmarks.gpu.ceilings import FORMATS, device_copy, nvcomp_side_by_side, pinned_upload
from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.cluster import ClusterCases
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.kernels import kernel_contestants
from benchmarks.gpu.readers import OURS, OURS_DASK, OURS_UPLOAD, OURS_XARRAY, READERS, Reader, open_array, open_boxes
from benchmarks.gpu.stages import RecordedReads, count_calls
from benchmarks.host.boxes import object_boxes
from benchmarks.runner.readers import READERS as SHIPPED
from benchmarks.runner.readers import ArrayReader
from benchmarks.runner.session import Case, Contestant, Ready
from xarray_gpuzarr.read import stored_array

_THREE_WAYS = (("NumPy", "zarr default"), ("CuPy", "zarr enable_gpu"), ("custom", "gpuzarr cuda"))
"""What the blog calls a way to read, and who goes it here."""


class Cases:
    """The cases of one GPU; arrays go to `folder`.

    Parameters
    ----------
    gpu : Gpu
    folder : pathlib.Path
    scale : float
        Share of the chunks of each array; below 0.01 chunks are smaller, too.
    """

    def __init__(self, gpu: Gpu, folder: Path, scale: float) -> None:
        self._gpu = gpu
        self._folder = folder
        self._scale = scale
        self._chunk_scale = min(1.0, 100 * scale)
        self._per_shard = max(4, round(BLOG.full.chunks_per_shard[0] * scale))
        self._chunk = round(BLOG.full.chunks[0] * self._chunk_scale)
        self.blog = self._reads_of(self._series("blog", n_shards=8))
        """The published array."""
        volume = self._volume("blosc zstd 5 shuffle")
        self._boxes = self._reads_of(replace(volume, name="boxes", shape=volume.whole))
        """A shard whose chunks are unshuffled, and lie scattered in the result."""

    def all(self) -> list[Case]:
        """Return every case, in the order in which they are to be run."""
        blog = self.blog
        return [
            blog.case("blog, warm", "8 shards x 400 chunks x 1.024 MB, zstd", 110, self._warm),
            Case(name="ceilings", summary="copies; nvCOMP on resident data", seconds=25, contestants=self._ceilings),
            replace(
                blog.case("blog, stages", "one shard of it, each stage alone", 8, self._blog_stages),
                about=blog.about_stages,
            ),
            Case(name="stages", summary="one read, by what host and device do", seconds=12, contestants=self._stages),
            Case(name="host cost", summary="of one shard, no I/O, no waiting", seconds=8, contestants=self._host_cost),
            blog.case("blog, cold", "the same, not in the page cache", 50, self._cold),
            Case(name="kernels", summary="alone, on resident data", seconds=25, contestants=self._kernels),
            *self._chunk_sizes(),
            *(self._codec(codec) for codec in ("none", "gzip 5", "lz4", "zlib 5")),
            *self._volumes(),
            self._era5(),
            *(self._blosc(cname) for cname in INNER_CODECS),
            blog.case("blog, compute", f"shard by shard, {BLOG_PRODUCTS} products of each", 50, self._compute),
            *ClusterCases(blog, least_seconds=self._chunk_scale).all(),
        ]

    def _reads_of(self, workload: Workload) -> ArrayReads:
        return ArrayReads(gpu=self._gpu, workload=workload, folder=self._folder)

    def _series(self, name: str, *, n_shards: int = 1, codec: str = "zstd 3") -> Workload:
        n = self._per_shard * self._chunk
        return replace(BLOG.full, name=name, shape=(n_shards * n,), chunks=(self._chunk,), shards=(n,), codec=codec)

    # ---- the blog's array

    def _warm(self) -> list[Contestant]:
        reads = self.blog
        return [*map(reads.contestant, READERS), reads.upload(), reads.nvcomp()]

    def _cold(self) -> list[Contestant]:
        readers = (OURS, OURS_DASK[-1], *(r for r in READERS if r.side == "peer"), OURS_UPLOAD)
        return [self.blog.contestant(reader, cold=True) for reader in readers]

    def _blog_stages(self) -> list[Contestant]:
        reads, n = self.blog, self._per_shard
        transfer = pinned_upload(self._gpu, lambda: reads.stored.files[:1], nbytes=reads.shard_nbytes)
        return [
            reads.file_read(),
            replace(transfer, name="transfer"),
            replace(reads.nvcomp(n), name="decode"),
            reads.products(BLOG_PRODUCTS),
        ]

    def _compute(self) -> list[Contestant]:
        return [
            Contestant(
                name=f"{way}: {name}",
                side="ours" if SHIPPED[name].ours else "peer",
                nbytes=self.blog.workload.nbytes,
                prepare=functools.partial(self._prepare_compute, SHIPPED[name]),
            )
            for way, name in _THREE_WAYS
        ]

    def _prepare_compute(self, reader: ArrayReader) -> Ready:
        read_box = open_boxes(self._gpu, self.blog.stored, reader)
        boxes = list(object_boxes(self.blog.workload))

        def on_host() -> list[Any]:
            return [_products(np.asarray(read_box(box)).reshape(-1)) for box in boxes]

        def on_device() -> list[Any]:
            shards = (read_box(box) for box in boxes)
            return [[self._gpu.product(shard) for _ in range(BLOG_PRODUCTS)][-1] for shard in shards]

        run = on_device if reader.device == "cuda" else on_host
        run()
        return Ready(measure=lambda: wall_seconds(self._gpu, run))

    # ---- each stage alone, and where the time goes

    def _ceilings(self) -> list[Contestant]:
        reads, n = self.blog, self._per_shard
        nbytes = reads.workload.nbytes
        return [
            device_copy(self._gpu, round(2**32 * self._scale)),
            reads.upload(),
            reads.nvcomp(n),
            reads.nvcomp(),
            nvcomp_side_by_side(self._gpu, lambda: reads.stored, n, n_streams=8, nbytes=nbytes),
        ]

    def _kernels(self) -> list[Contestant]:
        return kernel_contestants(self._gpu, self._scale)

    def _stages(self) -> list[Contestant]:
        def prepare(reads: ArrayReads) -> Ready:
            recorded = _first_shard(reads, with_marks=True)
            recorded.run()
            return Ready(measure=recorded.stages)

        return [_of_one_shard(reads, prepare) for reads in (self.blog, self._boxes)]

    def _host_cost(self) -> list[Contestant]:
        def prepare(reads: ArrayReads) -> Ready:
            recorded = _first_shard(reads, with_marks=False)
            recorded.run()
            python, native = count_calls(recorded.run)
            n = prod(reads.workload.chunks_per_shard)
            return Ready(measure=recorded.host_seconds, facts={"chunks": n, "Python calls": python, "C calls": native})

        return [_of_one_shard(reads, prepare) for reads in (self.blog, self._boxes)]

    # ---- other chunks, other codecs

    def _chunk_sizes(self) -> Iterator[Case]:
        """Return cases of one shard of 410 MB in chunks of other sizes."""
        whole = self._series("")
        for kilobytes in (64, 256, 1024, 4096):
            chunk = round(250 * kilobytes * self._chunk_scale)
            n = max(1, whole.shape[0] // chunk) * chunk
            layout = replace(whole, name=f"chunks {kilobytes} kB", shape=(n,), shards=(n,), chunks=(chunk,))
            yield self._reads(layout, 9)

    def _codec(self, codec: str) -> Case:
        return self._reads(self._series(f"codec {codec}", codec=codec), 8)

    def _reads(self, workload: Workload, seconds: float, more: Iterable[Reader] = ()) -> Case:
        """Return a case of ours on both sides, and of single stages: the upload, and nvCOMP where it is one call."""
        reads = self._reads_of(workload)

        def contestants() -> list[Contestant]:
            alone = [reads.upload()]
            alone += [reads.nvcomp()] if workload.compressor.family in FORMATS else []
            return [*(reads.contestant(r) for r in (OURS, OURS_UPLOAD, *more)), *alone]

        return reads.case(workload.name, workload.codec, seconds, contestants)

    def _volumes(self) -> Iterator[Case]:
        for codec in ("zstd 3", "blosc zstd 5 shuffle", "blosc lz4 5 bitshuffle", "none"):
            yield self._reads(self._volume(codec), 9, (OURS_DASK[-1],))

    def _volume(self, codec: str) -> Workload:
        """Return 8 shards, at full scale of 256^3 elements, in chunks of 32^3."""
        chunk = max(4, round(SHARDED_VOLUME.chunks[0] * self._chunk_scale))
        shard = chunk * max(2, round(8 * self._scale ** (1 / 3)))
        return replace(
            SHARDED_VOLUME,
            name=f"volume {codec}",
            shape=(2 * shard,) * 3,
            chunks=(chunk,) * 3,
            shards=(shard,) * 3,
            codec=codec,
        )

    def _era5(self) -> Case:
        steps = max(2, round(240 * self._scale))
        chunks = [max(4, round(n * self._chunk_scale)) for n in ERA5.chunks[1:]]
        workload = replace(
            ERA5,
            name="ERA5-like, CF",
            shape=(4 * steps, *(2 * n - 1 for n in chunks)),
            chunks=(1, *chunks),
            shards=(steps, *(2 * n for n in chunks)),
        )
        reads = self._reads_of(workload)

        def contestants() -> list[Contestant]:
            return [*(reads.contestant(reader) for reader in (OURS_XARRAY, *OURS_DASK[1:])), reads.upload()]

        return reads.case(workload.name, "int16 packed, masked and scaled", 12, contestants)

    def _blosc(self, cname: str) -> Case:
        """Return a case of all shuffles of one inner codec."""

        def contestants() -> list[Contestant]:
            found = []
            for shuffle in SHUFFLES:
                codec = f"blosc {cname} 5 {shuffle}"
                reads = self._reads_of(self._series(codec, codec=codec))
                found += [
                    replace(reads.contestant(reader), name=f"{shuffle}: {reader.name}")
                    for reader in (OURS, OURS_UPLOAD)
                ]
            return found

        return Case(name=f"blosc {cname}", summary="float32, three shuffles", seconds=13, contestants=contestants)


def _products(shard: Any) -> Any:
    """Return the product of a shard with itself, computed as often as the blog does."""
    return [shard @ shard for _ in range(BLOG_PRODUCTS)][-1]


def _first_shard(reads: ArrayReads, *, with_marks: bool) -> RecordedReads:
    box = tuple(slice(0, n) for n in reads.workload.whole)
    return RecordedReads(reads.gpu, stored_array(open_array(reads.stored)), box, with_marks=with_marks)


def _of_one_shard(reads: ArrayReads, prepare: Callable[[ArrayReads], Ready]) -> Contestant:
    workload = reads.workload
    name = f"{workload.codec}, {'boxes' if len(workload.shape) > 1 else 'runs'}"
    return Contestant(name=name, nbytes=reads.shard_nbytes, prepare=functools.partial(prepare, reads))
