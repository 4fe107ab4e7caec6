"""How long everything takes on the modelled device: assumptions, each with its source, until a GPU says otherwise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_MS, _US = 1e-3, 1e-6
RATIO = 5.3
"""Of the published array."""

Points = Sequence[tuple[int, float]]
"""Decoded bytes of a chunk, and the seconds that one slot needs for it; at least two, ascending."""

_ZSTD = ((16_000, 0.8 * _MS), (64_000, 2 * _MS), (256_000, 7.5 * _MS), (1_024_000, 30 * _MS), (4_096_000, 120 * _MS))
"""1 MB: within the 25 to 45 ms that a published batch of 400 takes (blog "GPU-accelerated Zarr", H100). Others:
assumed proportional, as blocks of a frame are decoded one after another, with a floor for what a frame costs."""
_ZSTD_BY_RATIO = ((1.08, 0.0875), (5.0, 1.0))
"""How much of that zstd takes by the ratio of decoded to encoded bytes: by the share that compression saves, nothing
beyond the ends. On an H200, 16 MiB of ratio 1.08 took 39 ms alone and 64 of them 47 ms together (srivarra/czarr, notes
of 2026); here both take 43 ms."""
_LZ4 = tuple((nbytes, seconds / 5) for nbytes, seconds in _ZSTD)
"""Assumed: five times as fast as zstd. For batched LZ4 of nvCOMP, 31 to 110 GB/s are reported (kvikio issue
293); here 90."""
_DEFLATE = tuple((nbytes, seconds * 1.5) for nbytes, seconds in _ZSTD)
"""Assumed: nvCOMP's documentation calls zstd's throughput moderate and deflate's low."""
_BLOSCLZ = ((4_000, 0.1 * _MS), (32_000, 0.7 * _MS), (1_024_000, 22 * _MS))
"""Our kernel: counted instructions give 0.5 to 0.9 ms for a stream of 32 KiB; not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds that a call keeps its thread busy, assumed from what CUDA's calls take on common hosts through Python."""

    allocate_s: float = 5 * _US
    free_s: float = 3 * _US
    copy_s: float = 6 * _US
    launch_s: float = 7 * _US
    decompress_s: float = 15 * _US
    """nvCOMP launches several kernels."""
    record_s: float = 2 * _US
    """Also of letting a stream wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A device, as far as it is modelled."""

    n_decoding: int = 528
    """Chunks that are decoded at once: 4 for each of the 132 multiprocessors of an H100; assumed."""
    in_turn: bool = False
    """Whether calls that decode wait for each other, whatever their streams, as 8 of 8 did on an H200 through nvCOMP's
    Python codec (the same notes); else they share what is decoded at once. Nobody has seen which of them it is."""
    decoding: dict[str, Points] = field(
        default_factory=lambda: {
            "zstd": _ZSTD,
            "lz4": _LZ4,
            "snappy": _LZ4,
            "gzip": _DEFLATE,
            "deflate": _DEFLATE,
            "blosclz": _BLOSCLZ,
        }
    )
    """By nvCOMP's name of the format, or the kernel's."""
    copy_latency_s: float = 10 * _US
    """Of either engine; assumed."""
    copy_rate: float = 50e9
    """Bytes a second, pinned, each way: 51.7 GB/s are published (the same blog)."""
    kernel_latency_s: float = 5 * _US
    """Of every launch; assumed."""
    kernel_rate: float = 2e12
    """Bytes read and written a second: 0.6 of the 3.35 TB/s of an H100's memory; assumed."""
    check_s: float = 20 * _US
    """Threads that follow the blocks of zstd frames, some ten dependent reads each; assumed."""
    lane_rate: float = 5.7e9
    """Bytes a second of each thread that reads a file, from the page cache (the same blog)."""
    lane_latency_s: float = 10 * _US
    host: HostCosts = field(default_factory=HostCosts)

    def decoding_s(self, fmt: str, nbytes: int, ratio: float = RATIO) -> float:
        """Return how long one slot needs for a chunk of so many decoded bytes; interpolated, no less than the first."""
        points = self.decoding[fmt]
        at = min(max(1, bisect_left(points, nbytes, key=lambda point: point[0])), len(points) - 1)
        (low, low_s), (high, high_s) = points[at - 1], points[at]
        seconds = max(points[0][1], low_s + (high_s - low_s) * (nbytes - low) / (high - low))
        return seconds * _by_ratio(ratio) if fmt == "zstd" else seconds

    def copy_s(self, nbytes: int) -> float:
        """Return how long a copy engine needs."""
        return self.copy_latency_s + nbytes / self.copy_rate

    def kernel_s(self, nbytes: int) -> float:
        """Return how long a kernel needs that reads and writes so many bytes in all."""
        return self.kernel_latency_s + nbytes / self.kernel_rate

    @property
    def slots(self) -> dict[str, int]:
        """What is occupied: parts of the device."""
        return {"upload": 1, "download": 1, "decode": 1 if self.in_turn else self.n_decoding, "kernel": 1}

    @property
    def hardware(self) -> str:
        """Return what it is that benchmarks vary."""
        return f"calls {'in turn' if self.in_turn else 'overlap'}, {self.n_decoding} slots"

    def lane_s(self, nbytes: int) -> float:
        """Return how long a thread needs for a read of a file."""
        return self.lane_latency_s + nbytes / self.lane_rate


def _by_ratio(ratio: float) -> float:
    ratios, factors = zip(*_ZSTD_BY_RATIO, strict=True)
    return float(np.interp(-1 / ratio, [-1 / each for each in ratios], factors))
