"""All cases, the most important ones first: a run that ends early has measured those."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmarks.gpu.ceilings import FORMATS, device_copy, nvcomp_alone, nvcomp_side_by_side, pinned_upload
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.kernels import kernel_contestants
from benchmarks.gpu.measure import Case, Contestant, Ready, WrongValuesError, wall_seconds
from benchmarks.gpu.readers import OURS, OURS_BLOCKS, OURS_DASK, OURS_UPLOAD, OURS_XARRAY, READERS, Reader, open_array
from benchmarks.gpu.stages import RecordedReads, count_calls
from benchmarks.gpu.stores import INNER_CODECS, SHUFFLES, VARIABLE, Layout, Stored, write
from xarray_gpuzarr import read_array
from xarray_gpuzarr.read import stored_array


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the contestants of one case share: an array, written when it is first needed, and its values."""

    gpu: Gpu
    layout: Layout
    folder: Path

    @cached_property
    def stored(self) -> Stored:
        """The array on disk."""
        return write(self.layout, self.folder)

    @cached_property
    def expected(self) -> Any:
        """What readers should return, on the device; packed values as stock xarray unpacks them."""
        if not self.layout.packed:
            return self.gpu.put(self.stored.values())
        stock = xr.open_dataset(self.stored.path, engine="zarr", chunks=None, consolidated=False)
        return self.gpu.put(stock[VARIABLE].to_numpy())

    def contestant(self, reader: Reader, *, cold: bool = False) -> Contestant:
        """Return a reader of the whole array."""
        return Contestant(
            name=reader.name, nbytes=self.layout.nbytes, prepare=functools.partial(self._prepare, reader, cold)
        )

    def _prepare(self, reader: Reader, cold: bool) -> Ready:  # noqa: FBT001  # through functools.partial
        run = reader.open(self.gpu, self.stored)
        self.check(run())
        facts: dict[str, float | str] = {"ratio": round(self.stored.ratio, 2)}
        if not cold:
            return Ready(measure=lambda: wall_seconds(self.gpu, run), facts=facts)
        facts["in memory when cold"] = round(self.stored.drop_from_cache(), 3)

        def measure() -> float:
            self.stored.drop_from_cache()
            return wall_seconds(self.gpu, run)

        return Ready(measure=measure, facts=facts)

    def check(self, result: Any) -> None:
        """Raise if a result has other values than were stored."""
        self.gpu.synchronize()
        if not self.gpu.same(result, self.expected):
            raise WrongValuesError(f"{result.dtype} {result.shape} with other values than were stored")

    def upload(self) -> Contestant:
        """Return the upload of the stored bytes alone."""
        return pinned_upload(self.gpu, lambda: self.stored, nbytes=self.layout.nbytes)

    def nvcomp(self, n: int | None = None) -> Contestant:
        """Return nvCOMP alone with as many chunks as the array has, or `n`."""
        n = n or self.layout.nbytes // self.layout.chunk_nbytes
        return nvcomp_alone(self.gpu, lambda: self.stored, n, nbytes=n * self.layout.chunk_nbytes)


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
        self._per_shard = max(4, round(400 * scale))
        self._chunk = round(256_000 * self._chunk_scale)
        self._published = self._scene(self._series("published", n_shards=8))
        volume = self._volume("blosc zstd shuffle")
        self._boxes = self._scene(replace(volume, name="boxes", shape=volume.shards))
        """A shard whose chunks are unshuffled, and lie scattered in the result."""

    def all(self) -> list[Case]:
        """Return every case, in the order in which they are to be run."""
        return [
            _case("published, warm", "8 shards x 400 chunks x 1.024 MB, zstd", 110, self._warm),
            _case("ceilings", "copies, and nvCOMP on resident data", 25, self._ceilings),
            _case("stages", "one read, by what host and device do", 12, self._stages),
            _case("host cost", "of one shard, without I/O and waiting", 8, self._host_cost),
            _case("published, cold", "the same, not in the page cache", 50, self._cold),
            _case("kernels", "alone, on resident data", 25, lambda: kernel_contestants(self._gpu, self._scale)),
            *self._chunk_sizes(),
            _case("shards", "of the published array, read_array", 15, self._shards),
            *(self._codec(codec) for codec in ("raw", "gzip", "lz4", "zlib")),
            *self._volumes(),
            self._era5(),
            *(self._blosc(cname) for cname in INNER_CODECS),
        ]

    def _scene(self, layout: Layout) -> Scene:
        return Scene(gpu=self._gpu, layout=layout, folder=self._folder)

    def _series(self, name: str, *, n_shards: int = 1, codec: str = "zstd") -> Layout:
        n = self._per_shard * self._chunk
        return Layout(
            name=name,
            shape=(n_shards * n,),
            chunks=(self._chunk,),
            shards=(n,),
            dtype="float32",
            codec=codec,
            field="series",
        )

    def _warm(self) -> list[Contestant]:
        blocks = Contestant(name=OURS_BLOCKS.name, nbytes=self._published.layout.nbytes, prepare=self._prepare_blocks)
        return [*map(self._published.contestant, READERS), blocks]

    def _prepare_blocks(self) -> Ready:
        run = OURS_BLOCKS.open(self._gpu, self._published.stored)
        self._published.check(run().compute())
        return Ready(measure=lambda: wall_seconds(self._gpu, run))

    def _cold(self) -> list[Contestant]:
        readers = (OURS, OURS_DASK[-1], *(r for r in READERS if not r.name.startswith("ours")), OURS_UPLOAD)
        return [self._published.contestant(reader, cold=True) for reader in readers]

    def _ceilings(self) -> list[Contestant]:
        scene, n = self._published, self._per_shard
        nbytes = scene.layout.nbytes
        return [
            device_copy(self._gpu, round(2**32 * self._scale)),
            scene.upload(),
            scene.nvcomp(n),
            scene.nvcomp(),
            nvcomp_side_by_side(self._gpu, lambda: scene.stored, n, n_streams=8, nbytes=nbytes),
        ]

    def _stages(self) -> list[Contestant]:
        def prepare(scene: Scene) -> Ready:
            reads = _first_shard(scene, with_marks=True)
            reads.run()
            return Ready(measure=reads.stages)

        return [_of_one_shard(scene, prepare) for scene in (self._published, self._boxes)]

    def _host_cost(self) -> list[Contestant]:
        def prepare(scene: Scene) -> Ready:
            reads = _first_shard(scene, with_marks=False)
            reads.run()
            python, native = count_calls(reads.run)
            n = prod(scene.layout.chunks_per_shard)
            return Ready(measure=reads.host_seconds, facts={"chunks": n, "Python calls": python, "C calls": native})

        return [_of_one_shard(scene, prepare) for scene in (self._published, self._boxes)]

    def _shards(self) -> list[Contestant]:
        def prepare(n: int) -> Ready:
            array = open_array(self._published.stored)
            box = slice(0, n * self._published.layout.shards[0])
            return Ready(
                measure=lambda: wall_seconds(self._gpu, lambda: read_array(array, box, device=self._gpu.device))
            )

        each = self._published.layout.nbytes // 8
        return [
            Contestant(name=f"{n} of 8", nbytes=n * each, prepare=functools.partial(prepare, n)) for n in (1, 2, 4, 8)
        ]

    def _chunk_sizes(self) -> list[Case]:
        """Return cases of one shard of 410 MB in chunks of other sizes."""
        cases = []
        whole = self._series("")
        for kilobytes in (64, 256, 1024, 4096):
            chunk = round(250 * kilobytes * self._chunk_scale)
            n = max(1, whole.shape[0] // chunk) * chunk
            layout = replace(whole, name=f"chunks {kilobytes} kB", shape=(n,), shards=(n,), chunks=(chunk,))
            cases.append(self._reads(layout, 9))
        return cases

    def _codec(self, codec: str) -> Case:
        return self._reads(self._series(f"codec {codec}", codec=codec), 8)

    def _reads(self, layout: Layout, seconds: float, more: Iterable[Reader] = ()) -> Case:
        """Return a case of ours on both sides, and what limits them, where that is a single call."""

        def contestants() -> list[Contestant]:
            scene = self._scene(layout)
            alone = [scene.upload()] if layout.codec == "raw" else []
            alone += [scene.nvcomp()] if layout.codec in FORMATS else []
            return [*(scene.contestant(r) for r in (OURS, OURS_UPLOAD, *more)), *alone]

        return _case(layout.name, layout.codec, seconds, contestants)

    def _volumes(self) -> list[Case]:
        codecs = ("zstd", "blosc zstd shuffle", "blosc lz4 bitshuffle", "raw")
        return [self._reads(self._volume(codec), 9, (OURS_DASK[-1],)) for codec in codecs]

    def _volume(self, codec: str) -> Layout:
        """Return 8 shards, at full scale of 256^3 elements, in chunks of 32^3."""
        chunk = max(4, round(32 * self._chunk_scale))
        shard = chunk * max(2, round(8 * self._scale ** (1 / 3)))
        return Layout(
            name=f"volume {codec}",
            shape=(2 * shard,) * 3,
            chunks=(chunk,) * 3,
            shards=(shard,) * 3,
            dtype="uint16",
            codec=codec,
            field="volume",
        )

    def _era5(self) -> Case:
        steps = max(2, round(240 * self._scale))
        chunks = [max(4, round(n * self._chunk_scale)) for n in (181, 360)]
        layout = Layout(
            name="ERA5-like, CF",
            shape=(4 * steps, *(2 * n - 1 for n in chunks)),
            chunks=(1, *chunks),
            shards=(steps, *(2 * n for n in chunks)),
            dtype="int16",
            codec="zstd",
            field="era5",
        )

        def contestants() -> list[Contestant]:
            scene = self._scene(layout)
            return [scene.contestant(reader) for reader in (OURS_XARRAY, *OURS_DASK[1:])]

        return _case(layout.name, "int16 packed, masked and scaled", 12, contestants)

    def _blosc(self, cname: str) -> Case:
        """Return a case of all shuffles of one inner codec."""

        def contestants() -> list[Contestant]:
            found = []
            for shuffle in SHUFFLES:
                codec = f"blosc {cname} {shuffle}"
                scene = self._scene(self._series(codec, codec=codec))
                found += [
                    replace(scene.contestant(reader), name=f"{shuffle}: {reader.name}")
                    for reader in (OURS, OURS_UPLOAD)
                ]
            return found

        return _case(f"blosc {cname}", "float32, three shuffles", 13, contestants)


def _case(name: str, summary: str, seconds: float, contestants: Callable[[], Sequence[Contestant]]) -> Case:
    return Case(name=name, summary=summary, seconds=seconds, contestants=contestants)


def _first_shard(scene: Scene, *, with_marks: bool) -> RecordedReads:
    box = tuple(slice(0, n) for n in scene.layout.shards)
    return RecordedReads(scene.gpu, stored_array(open_array(scene.stored)), box, with_marks=with_marks)


def _of_one_shard(scene: Scene, prepare: Callable[[Scene], Ready]) -> Contestant:
    layout = scene.layout
    name = f"{layout.codec}, {'boxes' if len(layout.shape) > 1 else 'runs'}"
    nbytes = prod(layout.shards) * np.dtype(layout.dtype).itemsize
    return Contestant(name=name, nbytes=nbytes, prepare=functools.partial(prepare, scene))
