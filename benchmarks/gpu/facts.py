"""``python -m benchmarks.gpu.facts``: what the docs say of GPUs and of nvCOMP without having seen one, asked of one.

Each row is a question; its facts are the answer. docs/gpu-proof.md says what is expected and what to do otherwise.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import imagecodecs
import numpy as np
import zstandard

from benchmarks.fields import make_field
from benchmarks.gpu.ceilings import FORMATS, device_copy, resident_streams
from benchmarks.gpu.clocks import device_seconds, wall_seconds
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu, NativeGpu
from benchmarks.gpu.memory import Workspace
from benchmarks.measure import Case, Contestant, Ready, WrongValuesError
from benchmarks.workloads import SERIES
from xarray_gpuzarr.cuda.nvcomp import Format, zstd_temp_nbytes

_MIB = 2**20
_SHIFTS = (0, 1, 3, 7, 4)


def cases(gpu: Gpu, _folder: Path, scale: float) -> list[Case]:
    """Return all questions."""
    return [
        _case("machine", "what this was asked of", 2, [_fact("this machine", lambda: _machine(gpu))]),
        _case("copies", "by length of the copy", 30, list(_copies(gpu, scale))),
        _case("alignment", "streams at odd addresses", 30, list(_alignments(gpu, scale))),
        _case("zstd frames", "unusual ones, all valid", 15, list(_frames(gpu, scale))),
        _case("scratch", "what nvCOMP asks for, against our formula", 2, [_fact("zstd", lambda: _scratch(gpu))]),
        _case("allocation", "of device memory, host time", 10, list(_allocations(gpu, scale))),
    ]


def _case(name: str, summary: str, seconds: float, contestants: Sequence[Contestant]) -> Case:
    return Case(name=name, summary=summary, seconds=seconds, contestants=lambda: contestants)


def _fact(name: str, ask: Callable[[], Mapping[str, float | str]]) -> Contestant:
    return Contestant(name=name, nbytes=0, prepare=lambda: Ready(measure=dict, facts=ask()))


def _machine(gpu: Gpu) -> dict[str, float | str]:
    found = {key: value if isinstance(value, (int, float)) else str(value) for key, value in gpu.about().items()}
    return {**found, "host cores": len(os.sched_getaffinity(0))}


def _copies(gpu: Gpu, scale: float) -> Iterator[Contestant]:
    for mebibytes in (1, 4, 16, 64, 256):
        nbytes = max(4096, round(mebibytes * _MIB * scale))
        yield Contestant(
            name=f"pinned to device, {mebibytes} MiB",
            side="limit",
            nbytes=nbytes,
            prepare=functools.partial(_pinned_copy, gpu, nbytes),
        )
    nbytes = max(4096, round(256 * _MIB * scale))
    values = np.ones(nbytes, np.uint8)
    yield Contestant(
        name="ordinary host memory to device, as CuPy does it, 256 MiB",
        side="limit",
        nbytes=nbytes,
        prepare=lambda: Ready(measure=lambda: wall_seconds(gpu, lambda: gpu.put(values))),
    )
    yield device_copy(gpu, max(4096, round(1024 * _MIB * scale)))


def _pinned_copy(gpu: Gpu, nbytes: int) -> Ready:
    space = Workspace(gpu)
    to, staged = space.empty(nbytes), gpu.api.allocate_pinned(nbytes).array
    staged[:] = 1
    upload = functools.partial(gpu.api.upload, to, staged[:nbytes], space.stream)
    return Ready(measure=lambda: device_seconds(gpu, space.stream, upload), close=space.close)


def _alignments(gpu: Gpu, scale: float) -> Iterator[Contestant]:
    """Return batches whose streams start at odd addresses; those that nvCOMP refuses are asked where it takes them."""
    from benchmarks.compressors import Compressor  # noqa: PLC0415  # imports zarr

    n_elements = max(64, round(16_384 * min(1.0, 100 * scale)))
    values = make_field(SERIES.field, (n_elements,))
    for family, (fmt, head, tail) in FORMATS.items():
        text = family if family == "lz4" else f"{family} 3"
        encoded = Compressor.from_text(text).encode(values)
        stream = encoded[head : len(encoded) - tail]
        least = gpu.api.nvcomp.alignment(fmt).source
        for shift in (s for s in _SHIFTS if s % least == 0):
            ask = functools.partial(_decoded, gpu, fmt, [stream] * max(4, round(1000 * scale)), values.tobytes(), shift)
            yield Contestant(name=f"{fmt}, offset {shift}", side="limit", nbytes=0, prepare=ask)


def _decoded(gpu: Gpu, fmt: Format, streams: Sequence[bytes], expected: bytes, shift: int = 0) -> Ready:
    """Decode once and compare; the time is that of a batch."""
    batch = resident_streams(gpu, fmt, streams, len(expected), shift=shift)
    statuses, actual = batch.outcome()
    right = batch.content(0) == batch.content(len(streams) - 1) == expected
    if any(statuses) or set(actual) != {len(expected)} or not right:
        lengths = sorted(set(actual))[:3]
        raise WrongValuesError(f"statuses {sorted(set(statuses))}, lengths {lengths}, values right: {right}")
    measure = functools.partial(device_seconds, gpu, batch.space.stream, batch.launch)
    return Ready(measure=measure, facts={"decoded": "rightly"}, close=batch.space.close)


def _frames(gpu: Gpu, scale: float) -> Iterator[Contestant]:
    n_elements = max(256, round(65_536 * min(1.0, 100 * scale)))
    smooth = make_field(SERIES.field, (n_elements,)).tobytes()
    noise = np.random.default_rng(0).bytes(len(smooth))
    far = noise * 2
    frames = {
        "with a content checksum": (smooth, zstandard.ZstdCompressor(level=3, write_checksum=True).compress(smooth)),
        "level 19": (smooth, zstandard.ZstdCompressor(level=19).compress(smooth)),
        "level -5": (smooth, zstandard.ZstdCompressor(level=-5).compress(smooth)),
        "nothing to compress": (noise, zstandard.ZstdCompressor(level=1).compress(noise)),
        "matches farther back than a block": (far, zstandard.ZstdCompressor(level=19).compress(far)),
        "by another encoder": (smooth, bytes(imagecodecs.zstd_encode(smooth, level=3))),
    }
    for name, (expected, frame) in frames.items():
        ask = functools.partial(_decoded, gpu, "zstd", [frame] * 8, expected)
        yield Contestant(name=name, side="limit", nbytes=8 * len(expected), prepare=ask)


def _scratch(gpu: Gpu) -> dict[str, float | str]:
    asked = [(1, 65_536), (400, 1_024_000), (24, 4 * _MIB), (6400, 65_536)]
    wrong = []
    for n, nbytes in asked:
        said = gpu.api.nvcomp.temp_nbytes("zstd", n_chunks=n, max_nbytes=nbytes, total_nbytes=n * nbytes)
        if said > zstd_temp_nbytes(n, n * nbytes):
            wrong.append(f"{n} of {nbytes}: {said}")
    return {"asked": len(asked), "more than the formula": "; ".join(wrong) or "none"}


def _allocations(gpu: Gpu, scale: float) -> Iterator[Contestant]:
    for mebibytes in (1, 400):
        nbytes = max(4096, round(mebibytes * _MIB * scale))

        def allocate(nbytes: int = nbytes) -> float:
            space = Workspace(gpu)
            start = time.perf_counter()
            space.empty(nbytes)
            took = time.perf_counter() - start
            space.close()
            return took

        name = f"{mebibytes} MiB, from the pool of reads"
        yield Contestant(name=name, nbytes=0, prepare=functools.partial(Ready, measure=allocate))


COMMAND = Command(
    module="benchmarks.gpu.facts",
    kind="facts",
    description="Ask a GPU what the docs assume.",
    seconds=90.0,
    cases=cases,
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = NativeGpu) -> int:
    """Ask everything; return 1 if something failed, 2 if nothing could be asked, else 0."""
    return exit_status(COMMAND.run(COMMAND.parser().parse_args(arguments), make_gpu))


if __name__ == "__main__":
    sys.exit(main())
