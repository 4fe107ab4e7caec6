"""What a shard costs the host of a GPU: planning it and giving the device its work, with nothing to wait for.

The real decoder reads through a device that does nothing and a store that is all headers (`timed`), on one
thread. Counted is all that the host does for a shard but I/O and the copying of its bytes: parsing and checking the
index, planning, handing requests over, checking frames, tables, launches, receipts. A read of one shard also pays for
the read itself; a shard of a long read is what one costs in a pipeline. Caches are warm, and time is that of the
thread on its core. Telling stages apart costs time: they add up to a tenth more than the whole.

- **index** parses and checks the shard index, **plan** makes a plan of it, **coalesce** looks for gaps in it;
- **batches and the rest** cuts plans into segments and batches, and keeps them in order;
- **requests** starts and finishes reads, **staging** lays segments out in pinned memory, **headers** checks frames;
- **tables** arranges a batch and writes its tables, **launches** enqueues copies and kernels, **receipt** asks for what
  the device says, and reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

from benchmarks.gpu.stages import count_calls
from benchmarks.host_cost.stopwatch import Stopwatch
from benchmarks.runner.session import Case, Contestant, Ready
from benchmarks.timed.device import ModelledDevice
from benchmarks.timed.headers import header_array
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.decoding import decode, receipt
from xarray_gpuzarr.decoders.cuda.staging import pinned
from xarray_gpuzarr.fetch import snapshot
from xarray_gpuzarr.plan import read_plan as plan
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import read

N_SHARDS = 32
_N_WARM = 32
"""Shards that are read before a read is timed."""
_MEANINGFUL_SCALE = 0.01
_REST = "batches and the rest"
_RANGES = {"index": "plan", "fetch": "requests", "transfer": "launches", "decode": "launches", "place": "launches"}
"""What the decoder marks for profilers, and what it is called here."""
_FUNCTIONS = (
    (snapshot, "decode_shard_index", "index"),
    (plan, "coalesce", "coalesce"),
    (pinned.Stager, "stage", "staging"),
    (pinned, "find_streams", "headers"),
    (decode.BatchDecoder, "decode", "tables"),
    (receipt.Receipt, "download", "receipt"),
    (receipt.Receipt, "failed_chunks", "receipt"),
)
"""Functions that are a stage of their own, within the ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A kind of shard: zstd, float32, 400 chunks of 1.024 MB, as the published array has them, or of 64 kB."""

    name: str
    chunks_per_shard: tuple[int, ...]
    chunk_shape: tuple[int, ...]


LAYOUTS = (
    Layout(name="1-D, runs", chunks_per_shard=(400,), chunk_shape=(256_000,)),
    Layout(name="1-D, 64 kB", chunks_per_shard=(400,), chunk_shape=(16_000,)),
    Layout(name="3-D, boxes", chunks_per_shard=(5, 8, 10), chunk_shape=(64, 80, 50)),
)

_ALONE = ResourceOptions(little="device")
"""Nobody shares reads with a device that decodes nothing."""


class NullReads:
    """Reads of shards of one layout that decode nothing.

    Parameters
    ----------
    layout : Layout
    n_shards : int
        Shards of each read.
    """

    def __init__(self, layout: Layout, n_shards: int) -> None:
        self._clock = Stopwatch(_REST, thread_time)
        self._device = ModelledDevice()
        self._decoder = CudaDecoder(lambda: self._device.as_api)
        self._per_shard = layout.chunks_per_shard[0] * layout.chunk_shape[0]
        self._stored = header_array(n_shards, layout.chunks_per_shard, layout.chunk_shape)
        for _ in range(3):
            self.run(n_shards)
        source: Any = self._stored.source
        source.is_writing = False

    def run(self, n_shards: int) -> None:
        """Read so many shards at once."""
        wanted = slice(0, n_shards * self._per_shard)
        before, in_force.options = in_force.options, _ALONE
        try:
            threads.limit_threads(1, lambda: read(self._stored, wanted, self._decoder))
        finally:
            in_force.options = before

    def seconds(self, n_shards: int) -> dict[str, float]:
        """Read once; return seconds by stage, as far as stages are listened to."""
        for _ in range(-(-_N_WARM // n_shards)):  # beginning to listen, and ending it, undoes what Python has learnt
            self.run(n_shards)
        self._clock.restart()
        self.run(n_shards)
        return self._clock.stop()

    @contextmanager
    def listened(self) -> Iterator[None]:
        """Tell stages apart inside a ``with`` block, which makes reads slower."""
        with ExitStack() as stack:
            for owner, name, label in _FUNCTIONS:
                stack.callback(self._clock.listen(owner, name, label))
            stack.callback(setattr, self._device, "enter_range", self._device.enter_range)
            self._device.enter_range = lambda name: self._clock.within(_RANGES[name.removeprefix("read::")])
            yield


def cases(scale: float, _folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    longest = N_SHARDS if scale >= _MEANINGFUL_SCALE else 2
    return [
        Case(
            name="host cost",
            summary="of a shard of 400 zstd chunks for a GPU, without I/O and copies; stages slowed by listening",
            contestants=lambda: [_contestant(layout, n) for layout in LAYOUTS for n in (1, longest)],
        )
    ]


def _contestant(layout: Layout, n_shards: int) -> Contestant:
    def prepare() -> Ready:
        reads = NullReads(layout, n_shards)
        python, native = count_calls(partial(reads.run, n_shards))
        facts = {"Python calls": round(python / n_shards), "C calls": round(native / n_shards)}
        return Ready(measure=partial(_measure, reads, n_shards), facts=facts)

    name = f"{layout.name}, {'the only shard' if n_shards == 1 else f'one of {n_shards} shards'}"
    return Contestant(name=name, nbytes=0, prepare=prepare)


def _measure(reads: NullReads, n_shards: int) -> dict[str, float]:
    whole = sum(reads.seconds(n_shards).values())
    with reads.listened():
        stages = reads.seconds(n_shards)
    return {label: seconds / n_shards for label, seconds in ({"": whole} | stages).items()}
