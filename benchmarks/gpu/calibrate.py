"""A machine's calibration, from the sweep's results: what `xarray_gpuzarr.decoders.cost` interpolates between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from benchmarks.gpu.sweep import CODECS
from benchmarks.results import CaseRows
from xarray_gpuzarr.decoders.cost import Calibration, CodecTimes, DeviceTimes, HostRates


def calibration_of(cases: Sequence[CaseRows], gpu_name: str) -> Calibration | None:
    """Return what a sweep says; None if a codec's sweep or the uploads have not run."""
    uploads = next((c for c in cases if c.name == "uploads"), None)
    short, long = (uploads.row(name) if uploads else None for name in ("short", "long"))
    codecs = {codec: times for codec in CODECS if (times := _codec_times(cases, codec))}
    if short is None or long is None or not codecs:
        return None
    rate = long.nbytes / max(long.wall_s - short.wall_s, 1e-9)
    return Calibration(
        gpu=gpu_name,
        date=datetime.now(UTC).date().isoformat(),
        upload_seconds=max(short.wall_s, 1e-9),
        upload_rate=rate,
        codecs=codecs,
        gds_is_quicker=_gds_is_quicker(cases),
    )


def _gds_is_quicker(cases: Sequence[CaseRows]) -> bool:
    storages = next((c for c in cases if c.name == "storages"), None)
    posix, gds = (storages.row(name) if storages else None for name in ("posix", "gds"))
    return posix is not None and gds is not None and gds.wall_s < posix.wall_s


def _codec_times(cases: Sequence[CaseRows], codec: str) -> CodecTimes | None:
    of_codec = [c for c in cases if c.about.get("codec") == codec]
    seconds = {
        (c.about["chunk_nbytes"], c.about["n_chunks"]): row.wall_s
        for c in of_codec
        if c.about["operation"] == "sweep" and (row := c.row("device"))
    }
    rates = {
        c.about["chunk_nbytes"]: (alone.rate, every.rate)
        for c in of_codec
        if c.about["operation"] == "host rates" and (alone := c.row("one thread")) and (every := c.row("all threads"))
    }
    lengths = sorted(rates.keys() & {nbytes for nbytes, _ in seconds})
    numbers = sorted({n for _, n in seconds})
    if not lengths:
        return None
    return CodecTimes(
        device=DeviceTimes(
            chunk_nbytes=tuple(lengths),
            n_chunks=tuple(numbers),
            seconds=rising([[_measured(seconds, nbytes, n) for n in numbers] for nbytes in lengths]),
        ),
        host=HostRates(
            chunk_nbytes=tuple(lengths),
            thread_rates=tuple(rates[nbytes][0] for nbytes in lengths),
            most=max(every for _, every in rates.values()),
        ),
    )


def _measured(seconds: Mapping[tuple[int, int], float], nbytes: int, n: int) -> float:
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
