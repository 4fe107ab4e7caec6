"""The cost model: how long host threads and the device take for so many chunks, and how to share the chunks out.

Pure arithmetic on measured times; no I/O. nvCOMP gives each compressed stream to one small group of threads, so a
device takes about as long for one chunk as for a few hundred: its times are a table over the number of chunks and their
length. Host threads take chunks one by one: their time is a rate. Both fetch the same bytes, so fetching is left out.

`calibration` reads measured times from a file; `decoders.cuda` asks for one decision a read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isfinite, log
from typing import Protocol

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """What the device takes for a read of n chunks, from encoded bytes on the host to decoded ones in place.

    Raises
    ------
    ValueError
        Axes do not rise, the table has another shape, or times are not positive, or fall as chunks get longer or more.
    """

    chunk_nbytes: tuple[int, ...]
    """Decoded bytes of a chunk, rising."""
    n_chunks: tuple[int, ...]
    """Chunks of a read, rising."""
    seconds: Table
    """shape (len(chunk_nbytes), len(n_chunks))."""

    def __post_init__(self) -> None:
        _check_axis("chunk_nbytes", self.chunk_nbytes)
        _check_axis("n_chunks", self.n_chunks)
        if [len(row) for row in self.seconds] != [len(self.n_chunks)] * len(self.chunk_nbytes):
            raise ValueError("seconds: not one row for each of chunk_nbytes with one time for each of n_chunks")
        columns = zip(*self.seconds, strict=True)
        for line in (*self.seconds, *columns):
            _check_positive("seconds", line)
            if any(after < before for before, after in pairwise(line)):
                raise ValueError("seconds: times fall where chunks become longer or more")

    def seconds_for(self, n: int, chunk_nbytes: int) -> float:
        """Return the time for `n` chunks of so many decoded bytes.

        Notes
        -----
        Along the length of chunks, logarithms are interpolated. Along their number, times stay level until the device
        is full and then rise in proportion; where that happens between two points, it is where the lines through their
        neighbours meet. Beyond the last points, times are in proportion; before the first ones they are those of the
        first: a launch costs what it costs.
        """
        if n == 0:
            return 0.0
        row, along = _place(self.chunk_nbytes, chunk_nbytes)
        beyond = max(1.0, n / self.n_chunks[-1]) * max(1.0, chunk_nbytes / self.chunk_nbytes[-1])
        upper = _bent(self.n_chunks, self.seconds[row], n)
        lower = _bent(self.n_chunks, self.seconds[min(row + 1, len(self.seconds) - 1)], n)
        return beyond * exp(upper + along * (lower - upper))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """What threads of the host decode, placing included.

    Raises
    ------
    ValueError
        The axis does not rise, lengths differ, or a rate is not positive.
    """

    chunk_nbytes: tuple[int, ...]
    """Decoded bytes of a chunk, rising."""
    thread_rates: tuple[float, ...]
    """Decoded bytes a second of one thread alone, for each of `chunk_nbytes`."""
    most: float
    """Decoded bytes a second of all threads, however many there are."""

    def __post_init__(self) -> None:
        _check_axis("chunk_nbytes", self.chunk_nbytes)
        if len(self.thread_rates) != len(self.chunk_nbytes):
            raise ValueError("thread_rates: not one for each of chunk_nbytes")
        _check_positive("thread_rates", self.thread_rates)
        _check_positive("most", [self.most])

    def seconds_for(self, n: int, chunk_nbytes: int, n_threads: int) -> float:
        """Return the time for `n` chunks of so many decoded bytes on `n_threads` threads."""
        at, along = _place(self.chunk_nbytes, chunk_nbytes)
        rate = exp(_between(self.thread_rates, at, along))
        rounds = -(-n // n_threads)
        return max(rounds * chunk_nbytes / rate, n * chunk_nbytes / self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTimes:
    """Both sides, for one codec."""

    device: DeviceTimes
    host: HostRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on one machine.

    Raises
    ------
    ValueError
        A time, a rate of uploads or a number of chunks is not positive.
    """

    gpu: str
    """Name of the GPU, for people."""
    date: str
    upload_seconds: float
    """What an upload of decoded bytes costs, however short it is."""
    upload_rate: float
    """Bytes a second of an upload from ordinary host memory."""
    codecs: Mapping[str, CodecTimes]
    """By name of the compressor, as `codec_name` gives it."""
    gds_is_quicker: bool = False
    """Whether local files reach the device sooner by GPUDirect Storage than through host memory."""
    wave: int | None = None
    """Chunks that the device decodes at once; None: not known."""
    overlaps: bool | None = None
    """Whether calls on several streams are decoded together, rather than in turn; None: not known."""

    def __post_init__(self) -> None:
        if self.wave is not None:
            _check_positive("wave", [self.wave])
        _check_positive("upload_seconds", [self.upload_seconds])
        _check_positive("upload_rate", [self.upload_rate])

    def device_seconds(self, codec: str, n: int, chunk_nbytes: int, n_reads: int = 1) -> float:
        """Return the time of the device for `n` chunks of each of so many reads at a time."""
        return self.codecs[codec].device.seconds_for(n * n_reads, chunk_nbytes)

    def staging_seconds(self, _n: int) -> float:
        """Return 0: the device's times include it."""
        return 0.0

    def host_seconds(self, codec: str, n: int, chunk_nbytes: int, n_threads: int, n_reads: int = 1) -> float:
        """Return the time until `n` chunks, decoded by threads of the host, are on the device.

        Reads that are under way at a time share the threads evenly. Chunks cross no slower than from ordinary memory.
        """
        if n == 0:
            return 0.0
        host, nbytes = self.codecs[codec].host, n * chunk_nbytes
        decoding = max(
            host.seconds_for(n, chunk_nbytes, threads_each(n_threads, n_reads)), n_reads * nbytes / host.most
        )
        return decoding + self.upload_seconds + nbytes / self.upload_rate


_LITTLE_NBYTES = 1 << 19
_LITTLE_CHUNK_NBYTES = 1 << 20


def is_little(n: int, chunk_nbytes: int) -> bool:
    """Say whether one thread of the host decodes chunks about as soon as several, and a kernel, are set to work."""
    return n * chunk_nbytes <= (_LITTLE_NBYTES if n > 1 else _LITTLE_CHUNK_NBYTES)


def threads_each(n_threads: int, n_reads: int) -> int:
    """Return how many of the threads each of some reads has, of which so many are under way at a time."""
    return max(1, n_threads // max(1, n_reads))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the chunks of a read are shared out."""

    n_host: int
    """Chunks that threads of the host decode; the device decodes the others at the same time."""
    seconds: float
    """Until both are done."""


_LEAST_GAIN = 0.1
"""What sharing, and reads by the host alone, have to save of the better side's time. Tables and rates are off by some
percent between what was measured, and what they leave out costs as much: threads begin with the host's chunks once the
device has been given its own."""
_LINE_RATE = 25e9
"""Bytes a second that any line to a device brings up; where the device decodes more, reads may wait for the line."""
_STAGING_BOUNDS = 16
"""Where staging takes more than one of so many parts of the device's time, reads may wait for that."""
_LEAST_GAIN_S = 5e-4
"""What sharing has to save in seconds, for each read that is under way: waking threads and a last batch more take some
tenths of a millisecond."""


class Times(Protocol):
    """How long either side takes for chunks; see `Calibration`."""

    def device_seconds(self, codec: str, n: int, chunk_nbytes: int, n_reads: int = 1, /) -> float:
        """Return the time of the device."""

    def host_seconds(self, codec: str, n: int, chunk_nbytes: int, n_threads: int, n_reads: int = 1, /) -> float:
        """Return the time of the host."""

    def staging_seconds(self, n: int, /) -> float:
        """Return the time of the host for what the device decodes."""


def best_split(  # noqa: PLR0913  # what a split depends on
    times: Times, codec: str, n: int, chunk_nbytes: int, n_threads: int, *, n_reads: int = 1, backlog: int = 0
) -> Split:
    """Return the split that is done first: of one side alone, unless sharing saves enough.

    Parameters
    ----------
    times : Calibration, or what stands for one
    codec : str
        One that it knows.
    n : int
        Chunks of the read.
    chunk_nbytes : int
        Decoded bytes of a chunk.
    n_threads : int
        Threads of the host that may decode at once, for all reads together.
    n_reads : int
        Reads that are under way at a time, this one included; the others are taken to be like it.
    backlog : int
        Chunks that the device has been given before and has not decoded.

    Notes
    -----
    More chunks on the host never shorten its time, nor lengthen the device's: the best split is where the two cross.

    Where several reads are under way, the device is taken to need as long as for one read of all their chunks. It needs
    less where staging or the line bounds it, but no less than for a read alone. Where these may bound it, or reads
    outnumber threads, the host's part therefore takes no longer than that; nor does all of the read by the host.
    """

    def host(n_host: int) -> float:
        decoding = times.host_seconds(codec, n_host, chunk_nbytes, n_threads, n_reads)
        return decoding + times.staging_seconds(n - n_host)

    def device(n_host: int) -> float:
        return times.device_seconds(codec, n + backlog - n_host, chunk_nbytes, n_reads)

    def split(n_host: int) -> Split:
        return Split(n_host=n_host, seconds=max(host(n_host), device(n_host)))

    little = is_little(n, chunk_nbytes)
    n_threads = 1 if little else n_threads
    on_device, on_host, alone_s = split(0), split(n), times.device_seconds(codec, n + backlog, chunk_nbytes)
    if little:
        return min(on_device, on_host, key=lambda found: found.seconds)
    whole = on_host if on_host.seconds < (1 - _LEAST_GAIN) * alone_s else on_device
    else_s = max(n * n_reads * chunk_nbytes / _LINE_RATE, _STAGING_BOUNDS * times.staging_seconds(n))
    most_s = inf if else_s < device(0) and n_reads <= n_threads else alone_s
    crossing = bisect_left(range(n + 1), x=True, key=lambda n_host: host(n_host) >= min(device(n_host), most_s))
    shared = min(map(split, (max(0, crossing - 1), min(n, crossing))), key=lambda found: (found.seconds, found.n_host))
    least_s = max(_LEAST_GAIN * whole.seconds, _LEAST_GAIN_S * n_reads)
    return shared if whole.seconds - shared.seconds >= least_s else whole


def _place(axis: Sequence[int], value: int) -> tuple[int, float]:
    """Return the point of an axis at or before a value, and how far the value lies towards the next, 0 to 1."""
    at = max(0, min(bisect_right(axis, value) - 1, len(axis) - 1))
    if at == len(axis) - 1 or value <= axis[0]:
        return at, 0.0
    return at, log(value / axis[at]) / log(axis[at + 1] / axis[at])


def _bent(axis: Sequence[int], values: Sequence[float], at: int) -> float:
    """Return the logarithm of a value on a line that may bend once between two neighbours, upwards."""
    i, along = _place(axis, at)
    if along == 0:
        return log(values[i])
    here, there = log(values[i]), log(values[i + 1])
    width = log(axis[i + 1] / axis[i])
    before = 0.0 if i == 0 else (here - log(values[i - 1])) / log(axis[i] / axis[i - 1])
    is_last = i + 2 == len(axis)
    after = 1.0 if is_last else (log(values[i + 2]) - there) / log(axis[i + 2] / axis[i + 1])
    bent = max(here + before * along * width, there - after * (1 - along) * width)
    return min(bent, here + along * (there - here))


def _between(values: Sequence[float], at: int, along: float) -> float:
    """Return the logarithm of a value between two neighbours."""
    here = log(values[at])
    return here if along == 0 else here + along * (log(values[at + 1]) - here)


def _check_axis(name: str, axis: Sequence[int]) -> None:
    if not axis or axis[0] < 1 or any(after <= before for before, after in pairwise(axis)):
        raise ValueError(f"{name}: not numbers of at least 1 that rise")


def _check_positive(name: str, values: Sequence[float]) -> None:
    if not all(isfinite(value) and value > 0 for value in values):
        raise ValueError(f"{name}: not all positive")
