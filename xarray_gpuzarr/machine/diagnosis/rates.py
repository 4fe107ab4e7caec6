"""Measure rates: of copies to the device that reads go to, from it and within it, of reads, and of host threads."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.configuration import native_device
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.machine.diagnosis.report import Section
from xarray_gpuzarr.machine.diagnosis.samples import CodecSample, Values, sample_of
from xarray_gpuzarr.process.threads import n_cores, thread_budget
from xarray_gpuzarr.read import read_array
from xarray_gpuzarr.stored.cf import Cast


def current_device(device: str = "cuda") -> DeviceApi:
    """Return the GPU that the calling thread reads to: its current one with ``"cuda"``, another with its number."""
    number = device.partition(":")[2]
    return native_device(int(number) if number else None)


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """Ways of an array to one device."""

    api: DeviceApi

    @property
    def device(self) -> str:
        """Name of the device in reads."""
        return f"cuda:{self.api.index}"

    def read(self, array: zarr.Array[Any]) -> Any:
        """Read as everybody does, as the options in force say."""
        return read_array(array, device=self.device)

    def upload(self, values: Values) -> Any:
        """Bring up values that lie in ordinary host memory, as the decoder does it."""
        return decoder_for(self.device).upload(values, Cast(dtype=values.dtype.str))

    def whole(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return a call that lasts until the device has done what `run` gives it."""

        def until_idle() -> object:
            with self.api.activate():  # to which CuPy copies
                result = run()
                self.api.synchronize(self.api.consumer_stream())
            return result

        return until_idle


def seconds_of(run: Callable[[], object], *, budget: float = 0.25, most: int = 5) -> float:
    """Return the median time of up to `most` runs, at least one, in `budget` seconds, after one that is not timed.

    What `run` returns is dropped after the clock has stopped.
    """
    run()
    times: list[float] = []
    while not times or (len(times) < most and sum(times) + times[-1] <= budget):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times)


CODECS = ("zstd", "gzip", "lz4", "blosc lz4", "blosc zstd")
"""Codecs that are measured on every host."""
_MIB = 2**20
_THREADS = "XARRAY_GPUZARR_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes that are moved and decoded."""

    copied: int = 256 * _MIB
    chunk: int = _MIB
    n_chunks: int = 32
    """Number of chunks in a read by the host; a GPU reads 16 times as many."""


def copies_section(api: DeviceApi, sizes: Sizes) -> Section:
    """Measure copies, and a read from local files."""
    with api.activate():
        rates = dict(_copies(api, sizes.copied))
    device = DeviceReads(api)
    with sample_of("zstd", chunk_nbytes=sizes.chunk, n_chunks=16 * sizes.n_chunks) as sample:
        wrong = sample.differs(device.read(sample.array), sample.n_chunks)
        seconds = seconds_of(device.whole(lambda: device.read(sample.array)), budget=1.0)
    rates["zstd from local files"] = sample.n_chunks * sample.chunk_nbytes / seconds
    return Section(
        name="copies",
        title="How fast are copies, and a read?",
        columns=("", "GB/s"),
        rows=[(name, f"{rate / 1e9:.3g}") for name, rate in rates.items()],
        failures=["a read of zstd from local files has other values than were stored"] if wrong else [],
        facts={f"{name}, bytes_per_second": rate for name, rate in rates.items()},
    )


def _copies(api: DeviceApi, nbytes: int) -> Iterator[tuple[str, float]]:
    """Return rates in bytes a second: pinned memory to the device and back, ordinary memory, and within the device."""
    stream, pinned = api.stream(), api.allocate_pinned(nbytes).array
    pinned[:] = 1
    memory = api.allocate(nbytes, stream)

    def timed(copy: Callable[[], object]) -> float:
        def run() -> None:
            copy()
            api.synchronize(stream)

        return nbytes / seconds_of(run)

    yield "upload, pinned", timed(lambda: api.upload(memory.address, pinned, stream))
    yield "download, pinned", timed(lambda: api.download(pinned, memory.address, stream))
    memory.free()
    device = DeviceReads(api)
    values = np.ones(nbytes // 4, np.float32)
    yield "upload, ordinary memory", nbytes / seconds_of(device.whole(lambda: device.upload(values)))
    resident = device.upload(values)
    yield "copy within the GPU", nbytes / seconds_of(device.whole(resident.copy))


def host_section(sizes: Sizes) -> Section:
    """Measure what threads of the host decode, by codec."""
    n_threads, rows, facts, wrong = thread_budget(), [], {}, []
    for codec in CODECS:
        with sample_of(codec, chunk_nbytes=sizes.chunk, n_chunks=sizes.n_chunks) as sample:
            rates = host_rates(sample, n_alone=sample.n_chunks)
            if sample.differs(read_array(sample.array, device="host"), sample.n_chunks):
                wrong.append(f"{codec}: other values than were stored")
        rows.append((codec, f"{rates.alone / 1e6:.0f}", f"{rates.every / 1e6:.0f}"))
        facts[codec] = asdict(rates)
    chunks = f"Chunks of {sizes.chunk} bytes of float32 in local files"
    note = f"{chunks}, placed in the result and compared; {n_cores()} cores."
    title = "How fast does the host decode?"
    columns = ("codec", "MB/s, one thread", f"{n_threads} thread{'s'[: n_threads > 1]}")
    return Section(name="host", title=title, columns=columns, rows=rows, notes=[note], failures=wrong, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Decoded bytes a second."""

    alone: float
    """Rate of one thread."""
    every: float
    """Rate of all threads that may decode at once."""


def host_rates(sample: CodecSample, n_alone: int = 8) -> Rates:
    """Measure how fast the host reads an array; `n_alone` chunks of it on one thread."""
    n_alone = min(n_alone, sample.n_chunks)
    part, whole = sample.box(n_alone), sample.box(sample.n_chunks)
    with _threads(1):
        alone = seconds_of(lambda: read_array(sample.array, part, device="host"))
    every = seconds_of(lambda: read_array(sample.array, whole, device="host"))
    return Rates(alone=n_alone * sample.chunk_nbytes / alone, every=sample.n_chunks * sample.chunk_nbytes / every)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before: Mapping[str, str] = {name: os.environ[name] for name in (_THREADS,) if name in os.environ}
    os.environ[_THREADS] = str(n)
    try:
        yield
    finally:
        del os.environ[_THREADS]
        os.environ.update(before)
