"""How long everything takes on the modelled device: assumptions, each with its source, until a GPU says otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_MS, _US = 1e-3, 1e-6

_ZSTD = ((16_000, 0.8 * _MS), (64_000, 2 * _MS), (256_000, 7.5 * _MS), (1_024_000, 30 * _MS), (4_096_000, 120 * _MS))
"""1 MB: within the 25 to 45 ms that a published batch of 400 takes (blog "GPU-accelerated Zarr", H100). Others:
assumed proportional, as blocks of a frame are decoded one after another, with a floor for what a frame costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A device, as far as it is modelled."""

    n_decoding: int = 528
    """Chunks that are decoded at once: 4 for each of the 132 multiprocessors of an H100; assumed."""
    in_turn: bool = False
    """Whether calls that decode wait for each other, whatever their streams, as 8 of 8 did on an H200 through nvCOMP's
    Python codec (srivarra/czarr, notes of 2026); else they share what is decoded at once. Nobody has seen which."""
    decoding: tuple[tuple[int, float], ...] = _ZSTD
    """Decoded bytes of a chunk, ascending, and the seconds that one slot needs for it."""
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
    allocate_s: float = 5 * _US
    """This and the others: how long a call keeps its thread busy, assumed from what CUDA's take through Python."""
    free_s: float = 3 * _US
    copy_call_s: float = 6 * _US
    launch_s: float = 7 * _US
    decompress_s: float = 15 * _US
    """nvCOMP launches several kernels."""
    record_s: float = 2 * _US
    """Also of letting a stream wait."""

    def decoding_s(self, nbytes: int) -> float:
        """Return how long one slot needs for a chunk of so many decoded bytes; interpolated."""
        lengths, seconds = zip(*self.decoding, strict=True)
        return float(np.interp(nbytes, lengths, seconds))

    def call_s(self, n: int, seconds: float) -> float:
        """Return how long one call takes that decodes so many chunks in waves, each as long as a chunk takes."""
        return math.ceil(n / self.n_decoding) * seconds

    @property
    def slots(self) -> dict[str, int]:
        """What is occupied: parts of the device."""
        return {"upload": 1, "download": 1, "decode": 1 if self.in_turn else self.n_decoding, "kernel": 1}
