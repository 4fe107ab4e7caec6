"""`copies_section` and `host_section`: measure how fast a GPU copies and reads, and how fast the host decodes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.machine.diagnosis.report import Section
from xarray_gpuzarr.machine.diagnosis.samples import CodecSample, Values, sample_of
from xarray_gpuzarr.process.threads import n_cores, thread_budget
from xarray_gpuzarr.read import read_array
from xarray_gpuzarr.stored.cf import Cast


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """Reads and uploads of arrays to a device, to be timed."""

    api: DeviceApi
    """The device."""

    @property
    def device(self) -> str:
        """Value of the option `device` of reads that selects this device, such as ``"cuda:0"``."""
        return f"cuda:{self.api.index}"

    def read(self, array: zarr.Array[Any]) -> Any:
        """Read an array as users do, with the options in force."""
        return read_array(array, device=self.device)

    def upload(self, values: Values) -> Any:
        """Copy values from ordinary host memory to the device, as the decoder does it."""
        return decoder_for(self.device).upload(values, Cast(dtype=values.dtype.str))

    def synchronized(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return a function that calls `run` and waits until the device has finished."""

        def run_and_wait() -> object:
            with self.api.activate():  # copies of CuPy run on the current device
                result = run()
                self.api.synchronize(self.api.consumer_stream())
            return result

        return run_and_wait


def seconds_of(run: Callable[[], object], *, budget_s: float = 0.25, max_calls: int = 5) -> float:
    """Return the median duration of a call, in seconds.

    Parameters
    ----------
    run : callable
        Called once for warming up, and then at least once. Its result is dropped after the clock has stopped.
    budget_s : float
        Seconds that the timed calls may take together. No more calls are made once another one, as long as the last,
        would exceed them.
    max_calls : int
        Largest number of calls that are timed.
    """
    run()
    times: list[float] = []
    while not times or (len(times) < max_calls and sum(times) + times[-1] <= budget_s):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times)


CODECS = ("zstd", "gzip", "lz4", "blosc lz4", "blosc zstd")
"""Codecs that `host_section` measures."""
_MIB = 2**20
_GPU_FACTOR = 16
"""Number of chunks that a GPU reads for each one that the host reads, because a GPU decodes hundreds at once."""
_NUM_THREADS_VARIABLE = "XARRAY_GPUZARR_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of what is copied and read."""

    copied_nbytes: int = 256 * _MIB
    """Bytes of a copy."""
    chunk_nbytes: int = _MIB
    """Decoded bytes of a chunk."""
    n_chunks: int = 32
    """Number of chunks that the host reads. A GPU reads `_GPU_FACTOR` times as many."""


def copies_section(api: DeviceApi, sizes: Sizes) -> Section:
    """Return a section that says how fast a device copies, and how fast it reads zstd from local files."""
    with api.activate():
        rates = dict(_copies(api, sizes.copied_nbytes))
    device = DeviceReads(api)
    with sample_of("zstd", chunk_nbytes=sizes.chunk_nbytes, n_chunks=_GPU_FACTOR * sizes.n_chunks) as sample:
        is_wrong = sample.differs(device.read(sample.array), sample.n_chunks)
        seconds = seconds_of(device.synchronized(lambda: device.read(sample.array)), budget_s=1.0)
    rates["zstd from local files"] = sample.n_chunks * sample.chunk_nbytes / seconds
    return Section(
        name="copies",
        title="How fast are copies, and a read?",
        columns=("", "GB/s"),
        rows=[(name, f"{rate / 1e9:.3g}") for name, rate in rates.items()],
        failures=["a read of zstd from local files has other values than were stored"] if is_wrong else [],
        facts={f"{name}, bytes_per_second": rate for name, rate in rates.items()},
    )


def _copies(api: DeviceApi, nbytes: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the rate, in bytes per second, of each kind of copy."""
    stream = api.stream()
    pinned = api.allocate_pinned(nbytes).array
    pinned[:] = 1
    memory = api.allocate(nbytes, stream)

    def rate_of(copy: Callable[[], object]) -> float:
        def run() -> None:
            copy()
            api.synchronize(stream)

        return nbytes / seconds_of(run)

    yield "upload, pinned", rate_of(lambda: api.upload(memory.address, pinned, stream))
    yield "download, pinned", rate_of(lambda: api.download(pinned, memory.address, stream))
    memory.free()
    device = DeviceReads(api)
    values = np.ones(nbytes // 4, np.float32)
    yield "upload, ordinary memory", nbytes / seconds_of(device.synchronized(lambda: device.upload(values)))
    resident = device.upload(values)
    yield "copy within the GPU", nbytes / seconds_of(device.synchronized(resident.copy))


def host_section(sizes: Sizes) -> Section:
    """Return a section that says how fast the host decodes each of `CODECS`, with one thread and with all."""
    rows = []
    failures = []
    facts = {}
    for codec in CODECS:
        with sample_of(codec, chunk_nbytes=sizes.chunk_nbytes, n_chunks=sizes.n_chunks) as sample:
            rates = host_rates(sample)
            if sample.differs(read_array(sample.array, device="host"), sample.n_chunks):
                failures.append(f"{codec}: other values than were stored")
        rows.append((codec, f"{rates.alone / 1e6:.0f}", f"{rates.every / 1e6:.0f}"))
        facts[codec] = asdict(rates)
    n_threads = thread_budget()
    chunks = f"Chunks of {sizes.chunk_nbytes} bytes of float32 in local files are decoded and placed in the result"
    return Section(
        name="host",
        title="How fast does the host decode?",
        columns=("codec", "MB/s, one thread", "1 thread" if n_threads == 1 else f"{n_threads} threads"),
        rows=rows,
        notes=[f"{chunks}, on {n_cores()} cores. The values are then compared with those that were written."],
        failures=failures,
        facts=facts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of decoding, in decoded bytes per second."""

    alone: float
    """Rate of one thread."""
    every: float
    """Rate of as many threads as may decode at once."""


def host_rates(sample: CodecSample) -> Rates:
    """Return the rates at which the host reads an array with one thread, and with all threads."""
    nbytes = sample.n_chunks * sample.chunk_nbytes
    with _threads(1):
        alone_s = seconds_of(lambda: read_array(sample.array, device="host"))
    every_s = seconds_of(lambda: read_array(sample.array, device="host"))
    return Rates(alone=nbytes / alone_s, every=nbytes / every_s)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Let reads inside a ``with`` block use `n` threads: each read looks at the environment."""
    previous = os.environ.get(_NUM_THREADS_VARIABLE)
    os.environ[_NUM_THREADS_VARIABLE] = str(n)
    try:
        yield
    finally:
        del os.environ[_NUM_THREADS_VARIABLE]
        if previous is not None:
            os.environ[_NUM_THREADS_VARIABLE] = previous
