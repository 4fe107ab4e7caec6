"""``python -m benchmarks.gpu.pool``: whether the pool of reads keeps its memory, and whether reads wait for consumers.

One shard is read while other results live, and while a consumer's kernels run on an earlier result.
``XARRAY_GPUZARR_POOL_WAITS`` and ``XARRAY_GPUZARR_POOL_KEPT_NBYTES`` restore CUDA's defaults for comparison.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.arrays.published import BLOG
from benchmarks.gpu.array_reads import ArrayReads
from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.readers import OURS
from benchmarks.runner.session import Case, Contestant, Ready

LIVE_SHARES = (0.0, 0.3, 0.6)
"""Shares of the device's memory that other results take. CUDA's pools, and ours before, change at a quarter."""
N_PRODUCTS = 400
"""Products that the consumer enqueues, each of an earlier result with itself."""
CONSUMERS = ("idle", "busy, result kept", "busy, result freed")


def cases(gpu: Gpu, folder: Path, scale: float) -> Iterator[Case]:
    """Return a case for each amount of live memory, and one for consumers."""
    chunk = round(BLOG.full.chunks[0] * min(1.0, 100 * scale))
    shard = chunk * max(4, round(BLOG.full.chunks_per_shard[0] * scale))
    reads = ArrayReads(
        gpu=gpu,
        workload=replace(BLOG.full, name="pool", shape=(shard,), chunks=(chunk,), shards=(shard,)),
        folder=folder,
    )
    for share in LIVE_SHARES:
        contestants = functools.partial(_beside_live_results, reads, share, scale)
        yield reads.case(f"{share:.0%} of memory live", "a read of one shard beside other results", 9, contestants)
    yield reads.case("consumer", "a read of one shard beside a consumer's kernels", 9, lambda: _beside(reads))


def _beside_live_results(reads: ArrayReads, share: float, scale: float) -> Sequence[Contestant]:
    def prepare() -> Ready:
        run = OURS.open(reads.gpu, reads.stored)
        reads.check(run())
        _, total_nbytes = reads.gpu.api.memory_nbytes()
        n_results = int(share * total_nbytes * min(1.0, 10 * scale)) // reads.shard_nbytes
        live = [run() for _ in range(n_results)]
        facts = {"live GB": round(n_results * reads.shard_nbytes / 1e9, 1)}
        return Ready(measure=lambda: wall_seconds(reads.gpu, run), facts=facts, close=live.clear)

    return [Contestant(name="read", nbytes=reads.shard_nbytes, prepare=prepare)]


def _beside(reads: ArrayReads) -> Sequence[Contestant]:
    return [
        Contestant(
            name=consumer, nbytes=reads.shard_nbytes, prepare=functools.partial(_prepare_consumer, reads, consumer)
        )
        for consumer in CONSUMERS
    ]


def _prepare_consumer(reads: ArrayReads, consumer: str) -> Ready:
    gpu, run = reads.gpu, OURS.open(reads.gpu, reads.stored)
    reads.check(run())

    def measure() -> dict[str, float]:
        earlier = [run()]
        gpu.synchronize()
        if consumer != "idle":
            for _ in range(N_PRODUCTS):
                gpu.product(earlier[0])
        if consumer == "busy, result freed":
            earlier.clear()
        start = time.perf_counter()
        result = run()
        returned = time.perf_counter()
        gpu.synchronize()
        idle = time.perf_counter()
        del result
        return {"read": returned - start, "then until idle": idle - returned}

    return Ready(measure=measure)


COMMAND = Command(
    module="benchmarks.gpu.pool",
    kind="pool",
    description="Measure reads beside live results and busy consumers.",
    seconds=40.0,
    rounds=5,
    cases=cases,
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = Gpu) -> int:
    """Measure; return 1 if something failed, 2 if there is no GPU, else 0."""
    return exit_status(COMMAND.run(COMMAND.parser().parse_args(arguments), make_gpu))


if __name__ == "__main__":
    sys.exit(main())
