"""Reads by the one worker of a cluster, with 1 to 8 threads: what they deliver, and how long the GPU is busy meanwhile.

dask cuts the work; blocks stay on the GPU. Started and stopped case by case, so that threads do not share its memory.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, wait

from benchmarks.arrays.published import BLOG_PRODUCTS
from benchmarks.gpu.array_reads import ArrayReads
from benchmarks.gpu.readers import location_of
from benchmarks.runner.readers import AbsentError, open_variable
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared
from xarray_gpuzarr import register

N_THREADS = (1, 2, 4, 8)


class ClusterCases:
    """Cases that read one array.

    Parameters
    ----------
    reads : ArrayReads
        A one-dimensional array.
    least_seconds : float
        How long one measurement repeats a read: the driver says only some times a second what the GPU does.
    """

    def __init__(self, reads: ArrayReads, least_seconds: float) -> None:
        self._reads = reads
        self._least_seconds = least_seconds

    def all(self) -> Iterator[Case]:
        """Return a case for each number of threads."""
        for n in N_THREADS:
            name = f"cluster, {n} thread{'s'[: n > 1]}"
            contestants = functools.partial(self._contestants, n)
            yield self._reads.case(name, "of one worker; blocks stay on the GPU", 20, contestants)

    def _contestants(self, n_threads: int) -> list[Contestant]:
        ways = {"read": self._persist, f"read, {BLOG_PRODUCTS} products of each shard": self._multiply}
        worker = Shared(functools.partial(self._started, n_threads), n_users=len(ways))
        nbytes = self._reads.workload.nbytes
        return [
            Contestant(
                name=name,
                nbytes=nbytes,
                prepare=functools.partial(worker.prepare, functools.partial(self._prepare, way)),
            )
            for name, way in ways.items()
        ]

    @contextmanager
    def _started(self, n_threads: int) -> Iterator[Client]:
        """Start a cluster; yield a client of it, whose worker is ready to read."""
        with self._reads.gpu.start_worker(n_threads) as client:
            register(client, device="cuda")
            yield client

    def _prepare(self, way: Callable[[Client, da.Array], Callable[[], object]], client: Client) -> Ready:
        location = location_of(self._reads.stored)
        blocks = open_variable(location, "gpuzarr", "chunks={}", device="workers").data
        run = way(client, blocks)
        run()
        return Ready(measure=lambda: self._measure(run))

    def _measure(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of a run, and how many of them the GPU was busy, if that can be known."""
        n, first, start = 0, time.time(), time.perf_counter()
        while n == 0 or time.perf_counter() - start < self._least_seconds:
            run()
            n += 1
        took = (time.perf_counter() - start) / n
        try:
            return {"": took, "GPU busy": took * self._reads.gpu.busy(first, time.time())}
        except AbsentError:
            return {"": took}

    def _persist(self, client: Client, blocks: da.Array) -> Callable[[], object]:
        """Read all blocks to the GPU, and leave them there."""
        found = client.compute(_by_block(blocks, _checksum, "u4")).result()
        if found.tolist() != self._checksums:
            raise WrongValuesError("blocks with other values than were stored")

        def run() -> None:
            with client.as_current():
                wait(client.persist(blocks))

        return run

    def _multiply(self, client: Client, blocks: da.Array) -> Callable[[], object]:
        """Read, and compute on, all blocks; bring a number of each to the client."""
        products = _by_block(blocks, _product, blocks.dtype)
        return lambda: client.compute(products).result()

    @cached_property
    def _checksums(self) -> list[int]:
        values = self._reads.workload.values()
        shards = np.split(values, range(self._reads.workload.whole[0], len(values), self._reads.workload.whole[0]))
        return [zlib.crc32(shard) for shard in shards]


def _by_block(blocks: da.Array, function: Callable[[Any], Any], dtype: Any) -> da.Array:
    """Return an array of one element for each block."""
    return blocks.map_blocks(function, chunks=((1,) * blocks.npartitions,), meta=np.empty(0, dtype))


def _checksum(block: Any) -> Any:
    return np.array([zlib.crc32(block.get())], "u4")


def _product(block: Any) -> Any:
    """Return the product of a block with itself, computed as often as the blog does."""
    flat = block.reshape(-1)
    return [flat @ flat for _ in range(BLOG_PRODUCTS)][-1].get().reshape(1)
