"""Where the device pays: reads of so many chunks of such a length, from which a machine's calibration is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from xarray_gpuzarr.decoders.cost.model import Calibration, CodecTimes, DeviceTimes, HostRates
from xarray_gpuzarr.decoders.cuda.batches.learnt import learnt_of
from xarray_gpuzarr.errors import CorruptChunkError, DeviceUnavailableError
from xarray_gpuzarr.machine.diagnosis.clock import seconds_of
from xarray_gpuzarr.machine.diagnosis.device import DeviceReads, going_by
from xarray_gpuzarr.machine.diagnosis.rates import CODECS, Rates, host_rates
from xarray_gpuzarr.machine.diagnosis.samples import Sample, sample_of

Progress = Callable[[str], object]
Point = tuple[int, int]
"""Decoded bytes of a chunk, chunks of a read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is read."""

    codecs: Sequence[str] = CODECS
    chunk_nbytes: Sequence[int] = (16_384, 65_536, 262_144, 1_048_576, 4_194_304)
    n_chunks: Sequence[int] = tuple(2**k for k in range(13))
    most_nbytes: int = 2**30
    """Decoded bytes of a read, at most; longer reads are taken to be in proportion."""
    host_nbytes: int = 2**28
    """Decoded bytes of a read by the host, at most."""
    upload_nbytes: int = 2**29


def calibrate(device: DeviceReads, grid: Grid, progress: Progress) -> Calibration:
    """Measure both sides.

    Raises
    ------
    CorruptChunkError
        A read gave other values than were stored: nothing is worth measuring then.
    """
    with going_by("off"):
        short, long = (_upload_seconds(device, nbytes) for nbytes in (4096, grid.upload_nbytes))
        codecs = {codec: _times(device, codec, grid, progress) for codec in grid.codecs}
        progress("GPUDirect Storage")
        gds_is_quicker = _gds_is_quicker(device, grid)
    identity, learnt = device.api.identity, learnt_of(device.api)  # the longer of these reads have taught it
    return Calibration(
        gpu=identity.name if identity else "a GPU that does not say",
        date=datetime.now(UTC).date().isoformat(),
        upload_seconds=max(short, 1e-9),
        upload_rate=grid.upload_nbytes / max(long - short, 1e-9),
        codecs=codecs,
        gds_is_quicker=gds_is_quicker,
        wave=learnt.wave if learnt.is_wave_full else None,
        overlaps=learnt.overlaps,
    )


def _upload_seconds(device: DeviceReads, nbytes: int) -> float:
    values = np.zeros(nbytes // 4, np.float32)
    return seconds_of(device.whole(lambda: device.upload(values)))


def _times(device: DeviceReads, codec: str, grid: Grid, progress: Progress) -> CodecTimes:
    seconds: dict[Point, float] = {}
    rates: dict[int, Rates] = {}
    for nbytes in grid.chunk_nbytes:
        progress(f"{codec}, chunks of {nbytes} bytes")
        numbers = [n for n in grid.n_chunks if n == grid.n_chunks[0] or n * nbytes <= grid.most_nbytes]
        with sample_of(codec, chunk_nbytes=nbytes, n_chunks=numbers[-1]) as sample:
            seconds |= {(nbytes, n): device_seconds(device, sample, n) for n in numbers}
        n_host = max(1, min(numbers[-1], grid.host_nbytes // nbytes))
        with sample_of(codec, chunk_nbytes=nbytes, n_chunks=n_host) as sample:
            rates[nbytes] = host_rates(sample)
    return codec_times(seconds, rates)


def device_seconds(device: DeviceReads, sample: Sample, n_chunks: int) -> float:
    """Return how long a read of some chunks takes.

    Raises
    ------
    CorruptChunkError
        It gave other values than were stored.
    """
    array, box = sample.array, sample.box(n_chunks)
    if sample.differs(device.read(array, box), n_chunks):
        raise CorruptChunkError(
            "the device gives wrong values",
            tried=f"{n_chunks} chunks of {sample.chunk_nbytes} bytes, {array.compressors}",
            found="other values than were stored, and no error",
            do="do not use this device; report what gpuzarr doctor --report prints",
        )
    return seconds_of(device.whole(lambda: device.read(array, box)))


def _gds_is_quicker(device: DeviceReads, grid: Grid) -> bool:
    """Say whether a long read of a local file is quicker straight into the device's memory."""
    nbytes = grid.chunk_nbytes[-1]
    with sample_of("zstd", chunk_nbytes=nbytes, n_chunks=max(1, grid.most_nbytes // 2 // nbytes)) as sample:

        def seconds(storage: str) -> float:
            return seconds_of(device.whole(lambda: device.read(sample.array, storage=storage)), budget=1.0)

        try:
            if device.api.why_no_files() is not None:
                return False
            return seconds("gds") < seconds("posix")
        except DeviceUnavailableError:
            return False


def codec_times(seconds: Mapping[Point, float], rates: Mapping[int, Rates]) -> CodecTimes:
    """Return what was measured of one codec, as the cost model takes it."""
    lengths = sorted(rates)
    numbers = sorted({n for _, n in seconds})
    return CodecTimes(
        device=DeviceTimes(
            chunk_nbytes=tuple(lengths),
            n_chunks=tuple(numbers),
            seconds=rising([[_measured(seconds, nbytes, n) for n in numbers] for nbytes in lengths]),
        ),
        host=HostRates(
            chunk_nbytes=tuple(lengths),
            thread_rates=tuple(rates[nbytes].alone for nbytes in lengths),
            most=max(rate.every for rate in rates.values()),
        ),
    )


def _measured(seconds: Mapping[Point, float], nbytes: int, n: int) -> float:
    """Return a measured time; of more chunks than were read, one in proportion."""
    most = max(number for length, number in seconds if length == nbytes)
    return seconds[nbytes, min(n, most)] * max(1.0, n / most)


def rising(table: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Return a table that falls along neither axis: the mean of its running maximum and of its running minimum."""
    values = np.array(table)
    up, down = values, values[::-1, ::-1]
    for axis in (0, 1):
        up, down = np.maximum.accumulate(up, axis), np.minimum.accumulate(down, axis)
    return tuple(tuple(row) for row in ((up + down[::-1, ::-1]) / 2).tolist())
