"""How long everything takes on the modelled device: assumptions, each with its source, until a GPU says otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

_MS, _US = 1e-3, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRates:
    """How a device decodes frames of one format. Nobody has measured any of these for this project."""

    n_at_once: int
    frame_rate: float
    """Decoded bytes of one frame a second, the same for all lengths: blocks of a frame follow each other."""
    least_s: float = 0.0
    """Of a frame, however short."""

    def call_s(self, n: int, nbytes: int) -> float:
        """Return how long a call takes that decodes `n` frames of so many bytes in waves, each as long as a frame."""
        return math.ceil(n / max(1, self.n_at_once)) * max(self.least_s, nbytes / self.frame_rate)


FORMATS = {
    # Four frames for each of the 132 multiprocessors of an H100, and 0.8 ms: assumed. 400 of 1.024 MB take an H100 25
    # to 45 ms (blog "GPU-accelerated Zarr"): here 30, so 18 GB/s of full slots.
    "zstd": FormatRates(n_at_once=528, frame_rate=1_024_000 / (30 * _MS), least_s=0.8 * _MS),
    # A warp a frame, so an H100 holds thousands; half of its 64 warps a multiprocessor: assumed. 1024 frames of 64 KiB
    # take an A40, whose clock is as fast, 8.9 ms: 7 GiB/s (srivarra/czarr, notes of 2026). Full slots give 31 GB/s, as
    # much as is reported of ERA5 (kvikio, issue 293).
    "lz4": FormatRates(n_at_once=132 * 32, frame_rate=7 * 2**30 / 1024),
    # A warp a frame as well: assumed. 10.6 GiB/s where LZ4 had 49, of data that compress well (kvikio, issue 208).
    "snappy": FormatRates(n_at_once=132 * 32, frame_rate=7 * 2**30 / 1024 * 10.6 / 49),
    # As zstd, but 1.5 times as long: assumed. nvCOMP's documentation calls zstd's rate moderate, and deflate's low.
    "gzip": FormatRates(n_at_once=528, frame_rate=1_024_000 / (45 * _MS), least_s=1.2 * _MS),
    "deflate": FormatRates(n_at_once=528, frame_rate=1_024_000 / (45 * _MS), least_s=1.2 * _MS),
    "raw": FormatRates(n_at_once=0, frame_rate=50e9),  # takes no slot: copied, at the `copy_rate` below
}
"""By nvCOMP's names. The bound is what full slots decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A device, as far as it is modelled."""

    formats: Mapping[str, FormatRates] = field(default_factory=lambda: FORMATS)
    in_turn: bool = False
    """Whether calls that decode wait for each other, whatever their streams, as 8 of 8 did on an H200 through nvCOMP's
    Python codec (srivarra/czarr, notes of 2026); else they share what is decoded at once. Nobody has seen which."""
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

    def with_slots(self, n_at_once: int) -> Self:
        """Return rates of a device that decodes so many frames at once, whatever their format."""
        formats = {name: replace(each, n_at_once=n_at_once) for name, each in self.formats.items()}
        return replace(self, formats=formats)

    @property
    def slots(self) -> dict[str, int]:
        """What is occupied: parts of the device. Each format has slots of its own."""
        decoders = {name: 1 if self.in_turn else each.n_at_once for name, each in self.formats.items()}
        return {"upload": 1, "download": 1, "kernel": 1, **decoders}
