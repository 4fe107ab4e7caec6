"""``python -m benchmarks.gpu.saturation``: what nvCOMP alone decodes, by format, length of chunks, chunks and streams.

Compressed chunks lie on the device before the clock starts, and their values stay there: no reader can be quicker. How
many chunks a GPU decodes at once, and how long one takes, is what the sizes of batches and `benchmarks.timed` rest on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arrays.published import BLOG
from benchmarks.arrays.workloads import Workload
from benchmarks.gpu.ceilings import FORMATS, resident, side_by_side
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.resident import Resident
from benchmarks.page.tables import saturation_table
from benchmarks.runner.readers import AbsentError
from benchmarks.runner.session import Case, Contestant, Ready
from benchmarks.shared import Shared

CODECS = ("zstd 3", "lz4", "gzip 5", "zlib 5")
KILOBYTES = (64, 256, 1024, 4096)
"""Of a decoded chunk."""
COUNTS = (16, 400, 800, 1600, 3200)
"""Chunks at once, on all streams together. Any GPU decodes as few as 16 side by side: what they take, one takes."""
STREAMS = (1, 2, 4, 8)
_SECONDS = {64: 4.0, 256: 5.0, 1024: 10.0, 4096: 25.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """What one case decodes.

    Parameters
    ----------
    gpu : Gpu
    workload : Workload
        Its distinct chunks are repeated.
    """

    gpu: Gpu
    workload: Workload

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return self.workload.chunk_nbytes

    @contextmanager
    def resident(self, counts: Sequence[int]) -> Iterator[Resident]:
        """Yield as many chunks on the device as the largest of these counts that fits."""
        free, _ = self.gpu.api.memory_nbytes()
        # Encoded and decoded; and scratch of three times the length, once for all and once on the streams together.
        lengths = 8 if self.workload.compressor.family in {"zstd", "gzip"} else 3
        n = max((n for n in counts if lengths * n * self.nbytes <= free), default=min(counts))
        with ThreadPoolExecutor() as threads:
            encoded = list(threads.map(self.workload.compressor.encode, self.workload.tiles()))
        chunks = resident(self.gpu, self.workload, encoded, n)
        try:
            yield chunks
        finally:
            chunks.space.close()


def cases(gpu: Gpu, _: Path, scale: float) -> Iterator[Case]:
    """Return a case for each format and length of chunks."""
    counts = sorted({max(1, round(n * min(1, 10 * scale))) for n in COUNTS})
    for codec in CODECS:
        for kilobytes in KILOBYTES:
            n = round(250 * kilobytes * min(1.0, 10 * scale))
            series = replace(BLOG.full, codec=codec, shape=(64 * n,), chunks=(n,), shards=None)
            chunks = Chunks(gpu=gpu, workload=series)
            yield Case(
                name=f"{codec}, {kilobytes} kB",
                summary="nvCOMP alone, on resident data",
                seconds=_SECONDS[kilobytes],
                contestants=functools.partial(_contestants, chunks, counts),
                about=functools.partial(_about, chunks),
            )


def _about(chunks: Chunks) -> dict[str, object]:
    fmt, *_ = FORMATS[chunks.workload.compressor.family]
    return {"operation": "saturation", "format": fmt, "chunk_nbytes": chunks.nbytes}


def _contestants(chunks: Chunks, counts: Sequence[int]) -> list[Contestant]:
    pairs = [(n, n_streams) for n in counts for n_streams in STREAMS if n_streams == 1 or n > counts[0]]
    shared = Shared(functools.partial(chunks.resident, counts), len(pairs))

    def prepare(n: int, n_streams: int) -> Ready:
        return shared.prepare(lambda found: _decoded_on(chunks.gpu, found, n, n_streams))

    return [
        Contestant(
            name=f"{n} chunks on {n_streams}",
            side="bare",
            nbytes=n // n_streams * n_streams * chunks.nbytes,
            prepare=functools.partial(prepare, n, n_streams),
        )
        for n, n_streams in pairs
    ]


def _decoded_on(gpu: Gpu, chunks: Resident, n: int, n_streams: int) -> Ready:
    """Return the decoding of the first `n` chunks, an equal share of them on each stream."""
    if n > chunks.n:
        raise AbsentError(f"{n} chunks do not fit into the memory of this device")
    return Ready(measure=functools.partial(side_by_side, gpu, chunks, n // n_streams, n_streams))


COMMAND = Command(
    module="benchmarks.gpu.saturation",
    kind="saturation",
    description="Measure what nvCOMP alone decodes.",
    seconds=180.0,
    rounds=3,
    cases=cases,
    tables=False,
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = Gpu) -> int:
    """Measure; return 1 if something failed, 2 if there is no GPU, else 0."""
    results = COMMAND.run(COMMAND.parser().parse_args(arguments), make_gpu)
    if results is not None:
        print(saturation_table(results.cases))
    return exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
