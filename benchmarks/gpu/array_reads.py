"""What the contestants of one case share: an array, written when it is first needed, and its values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmarks.arrays.workloads import Workload
from benchmarks.gpu.ceilings import nvcomp_alone, pinned_upload
from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.readers import Reader
from benchmarks.gpu.stores import Stored, write
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError


@dataclass(frozen=True, kw_only=True)
class ArrayReads:
    """One array, and the contestants that read it."""

    gpu: Gpu
    workload: Workload
    folder: Path

    @cached_property
    def stored(self) -> Stored:
        """The array on disk."""
        return write(self.workload, self.folder)

    @cached_property
    def expected(self) -> Any:
        """What readers should return, on the device; packed values as stock xarray unpacks them."""
        if not self.workload.packed:
            return self.gpu.put(self.workload.values())
        stock = xr.open_dataset(self.stored.path, engine="zarr", chunks=None, consolidated=False)
        return self.gpu.put(stock[self.workload.variable].to_numpy())

    @property
    def shard_nbytes(self) -> int:
        """Decoded bytes of one shard."""
        return prod(self.workload.whole) * self.workload.itemsize

    def about(self) -> Mapping[str, Any]:
        """Return what was read, for the report."""
        return {
            "operation": "read",
            "workload": asdict(self.workload),
            "nbytes": self.workload.nbytes,
            "stored_nbytes": self.stored.nbytes,
        }

    def about_stages(self) -> Mapping[str, Any]:
        """Return what stages of one shard work on."""
        of_one = {"nbytes": self.shard_nbytes, "stored_nbytes": self.stored.files[0].stat().st_size}
        return {"operation": "stages", "workload": asdict(self.workload), **of_one}

    def case(self, name: str, summary: str, seconds: float, contestants: Callable[[], Sequence[Contestant]]) -> Case:
        """Return a case of reads of this array."""
        return Case(name=name, summary=summary, seconds=seconds, contestants=contestants, about=self.about)

    def contestant(self, reader: Reader, *, cold: bool = False) -> Contestant:
        """Return a reader of the whole array."""
        return Contestant(
            name=reader.name,
            side=reader.side,
            nbytes=self.workload.nbytes,
            prepare=functools.partial(self._prepare, reader, cold),
        )

    def _prepare(self, reader: Reader, cold: bool) -> Ready:  # noqa: FBT001  # through functools.partial
        run = reader.open(self.gpu, self.stored)
        self.check(run())
        if not cold:
            return Ready(measure=lambda: wall_seconds(self.gpu, run))

        def measure() -> Any:
            self.stored.drop_from_cache()
            return wall_seconds(self.gpu, run)

        return Ready(measure=measure, facts={"in memory when cold": round(self.stored.drop_from_cache(), 3)})

    def check(self, result: Any) -> None:
        """Raise if a result has other values than were stored."""
        self.gpu.synchronize()
        if not self.gpu.same(result, self.expected):
            raise WrongValuesError(f"{result.dtype} {result.shape} with other values than were stored")

    def upload(self) -> Contestant:
        """Return the upload of the stored bytes alone."""
        return pinned_upload(self.gpu, lambda: self.stored.files, nbytes=self.workload.nbytes)

    def nvcomp(self, n: int | None = None) -> Contestant:
        """Return nvCOMP alone with as many chunks as the array has, or `n`."""
        n = n or prod(self.workload.grid)
        return nvcomp_alone(self.gpu, lambda: self.stored, n, nbytes=n * self.workload.chunk_nbytes)

    def file_read(self) -> Contestant:
        """Return the read of the first shard's bytes into pinned memory that is there already."""

        def prepare() -> Ready:
            file = self.stored.files[0]
            staged = self.gpu.api.allocate_pinned(file.stat().st_size).array

            def run() -> int:
                with file.open("rb", buffering=0) as shard:
                    return int(shard.readinto(memoryview(staged)) or 0)

            run()
            return Ready(measure=lambda: wall_seconds(self.gpu, run))

        return Contestant(name="read", side="bare", nbytes=self.shard_nbytes, prepare=prepare)

    def products(self, n: int) -> Contestant:
        """Return the computation on one decoded shard: its product with itself, so many times."""

        def prepare() -> Ready:
            shard = self.gpu.put(np.resize(self.workload.tiles().reshape(-1), prod(self.workload.whole)))
            measure = functools.partial(wall_seconds, self.gpu, lambda: [self.gpu.product(shard) for _ in range(n)])
            measure()
            return Ready(measure=measure)

        return Contestant(name="compute", side="bare", nbytes=self.shard_nbytes, prepare=prepare)
