"""Reads by the one worker of a cluster, with 1 to 8 threads: what they deliver, and how long the GPU is busy meanwhile.

dask cuts the work; blocks stay on the GPU. Started and stopped case by case, so that threads do not share its memory.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, wait

from benchmarks.gpu.readers import location_of
from benchmarks.gpu.array_reads import Scene
from benchmarks.measure import AbsentError, Case, Contestant, Ready, WrongValuesError
from benchmarks.arrays.published import BLOG_PRODUCTS
from xarray_gpuzarr import register
from xarray_gpuzarr.bench.readers import open_variable

N_THREADS = (1, 2, 4, 8)


class ClusterCases:
    """Cases that read one array.

    Parameters
    ----------
    scene : Scene
        A one-dimensional array.
    least_seconds : float
        How long one measurement repeats a read: the driver says only some times a second what the GPU does.
    """

    def __init__(self, scene: Scene, least_seconds: float) -> None:
        self._scene = scene
        self._least_seconds = least_seconds

    def all(self) -> Iterator[Case]:
        """Return a case for each number of threads."""
        for n in N_THREADS:
            name = f"cluster, {n} thread{'s'[: n > 1]}"
            contestants = functools.partial(self._contestants, n)
            yield self._scene.case(name, "of one worker; blocks stay on the GPU", 20, contestants)

    def _contestants(self, n_threads: int) -> list[Contestant]:
        ways = {"read": self._persist, f"read, {BLOG_PRODUCTS} products of each shard": self._multiply}
        worker = _Worker(lambda: self._scene.gpu.start_worker(n_threads), n_users=len(ways))
        nbytes = self._scene.workload.nbytes
        return [
            Contestant(name=name, nbytes=nbytes, prepare=functools.partial(self._prepare, worker, way))
            for name, way in ways.items()
        ]

    def _prepare(self, worker: _Worker, way: Callable[[Client, da.Array], Callable[[], object]]) -> Ready:
        try:
            location = location_of(self._scene.stored)
            blocks = open_variable(location, "gpuzarr", "chunks={}", device="workers").data
            run = way(worker.client, blocks)
            run()
        except BaseException:
            worker.close()
            raise
        return Ready(measure=lambda: self._measure(run), close=worker.close)

    def _measure(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of a run, and how many of them the GPU was busy, if that can be known."""
        n, first, start = 0, time.time(), time.perf_counter()
        while n == 0 or time.perf_counter() - start < self._least_seconds:
            run()
            n += 1
        took = (time.perf_counter() - start) / n
        try:
            return {"": took, "GPU busy": took * self._scene.gpu.busy(first, time.time())}
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
        values = self._scene.workload.values()
        shards = np.split(values, range(self._scene.workload.whole[0], len(values), self._scene.workload.whole[0]))
        return [zlib.crc32(shard) for shard in shards]


class _Worker:
    """A cluster that starts when its client is first asked for, and stops when the last of its users has closed it."""

    def __init__(self, start: Callable[[], Any], n_users: int) -> None:
        self._start = start
        self._n_users = n_users
        self._stack = ExitStack()

    @cached_property
    def client(self) -> Client:
        """A client of the cluster, whose worker is ready to read."""
        client: Client = self._stack.enter_context(self._start())
        register(client, device="cuda")
        return client

    def close(self) -> None:
        """Let one user go."""
        self._n_users -= 1
        if self._n_users == 0:
            self._stack.close()


def _by_block(blocks: da.Array, function: Callable[[Any], Any], dtype: Any) -> da.Array:
    """Return an array of one element for each block."""
    return blocks.map_blocks(function, chunks=((1,) * blocks.npartitions,), meta=np.empty(0, dtype))


def _checksum(block: Any) -> Any:
    return np.array([zlib.crc32(block.get())], "u4")


def _product(block: Any) -> Any:
    """Return the product of a block with itself, computed as often as the blog does."""
    flat = block.reshape(-1)
    return [flat @ flat for _ in range(BLOG_PRODUCTS)][-1].get().reshape(1)
