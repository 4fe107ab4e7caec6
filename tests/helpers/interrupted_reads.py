"""Reads that a signal interrupts, again and again: ``python -m helpers.interrupted_reads shards 2 60`` (seconds).

After each interrupt, nothing that reads hold may be held, and the next read must give the right values.
"""

import asyncio
import gc
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import xarray as xr
import zarr
from rich.console import Console
from zarr.codecs import ZstdCodec
from zarr.core import sync
from zarr.storage import LocalStore, MemoryStore

import xarray_gpuzarr
from helpers.simulated.reads import SMALL, CudaReads
from helpers.simulated.simulator import SimulatedDevice
from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import HostDecoder, chunk_cache
from xarray_gpuzarr.fetch import source
from xarray_gpuzarr.process import progress_bar, threads
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.process.turns import turns
from xarray_gpuzarr.read import stored_array

_HELPERS = str(Path(__file__).parent)
_PACKAGE = str(Path(xarray_gpuzarr.__file__).parent)


def is_foreign(frame: FrameType | None) -> bool:
    """Say whether a point lies outside of the package and what it calls, or in a fake of the tests."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith((_PACKAGE, _HELPERS)):
            return path.startswith(_HELPERS)
        frame = frame.f_back
    return True


DATA = np.arange(40 * 64 * 32, dtype="<i4").reshape(40, 64, 32) % 1000
LAYOUT: dict[str, Any] = {"chunks": (10, 32, 16), "shards": (20, 64, 32), "compressors": ZstdCodec()}


def check_threads() -> None:
    """Fail if a budget or a core of this process is held, or a thread is in a stage; a lock would end the next read."""
    assert crew.n_active == 0, f"{crew.n_active} active threads"
    assert not turns.holders, f"{len(turns.holders)} turns"
    assert counters.local.account.stage is None, f"in stage {counters.local.account.stage}"
    assert threads._limit.n_threads is None
    assert not progress_bar.shown_bars


def check_requests() -> None:
    """Fail if a request is still under way; those that were cancelled end soon."""
    loop = sync._get_loop()

    async def others() -> set[Any]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    for _ in range(100):
        if not asyncio.run_coroutine_threadsafe(others(), loop).result(10):
            return
        time.sleep(0.01)
    raise AssertionError("requests are still under way")


def n_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Subject:
    """Something that is read and then looked at."""

    def __init__(self, read: Callable[[], Any], checks: list[Callable[[], Any]]) -> None:
        self._read = read
        self._checks = checks
        for _ in range(3):
            self.read()
        self._n_files = n_files()

    def read(self) -> None:
        assert np.array_equal(self._read(), DATA)

    def interrupted(self, work: Callable[[], Any]) -> bool:
        """Do some work that may be interrupted; look for what it leaves, and read once more."""
        try:
            work()
            hit = False
        except KeyboardInterrupt:
            hit = True
        for check in self._checks:
            check()
        assert n_files() == self._n_files, f"{n_files() - self._n_files} files are open"
        return hit


def host_read(array: Any) -> Any:
    return lambda: read_array(array, device="host")


def local(path: str, n_threads: int, **layout: Any) -> Subject:
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = str(n_threads)
    array = zarr.create_array(LocalStore(path), data=DATA, **layout)
    return Subject(host_read(array), [check_threads])


def memory(n_threads: int, **layout: Any) -> Subject:
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = str(n_threads)
    array = zarr.create_array(MemoryStore(), data=DATA, **layout)
    return Subject(host_read(array), [check_threads, check_requests])


def parts(path: str, n_threads: int) -> Subject:
    """Reads of parts of chunks, which are kept decoded, and of which no read may be taken for the one that decodes."""
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = str(n_threads)
    source.SETTLED_S = -1e9
    array = zarr.create_array(LocalStore(path), data=DATA, **LAYOUT)

    def check() -> None:
        cache = chunk_cache.cache
        assert all(claim.has_ended for claim in cache._claims.values())
        cache.entries.drop(next(iter(cache.entries._entries), None))  # and is decoded anew

    return Subject(
        lambda: np.concatenate([read_array(array, slice(i, i + 8)) for i in range(0, 40, 8)]), [check_threads, check]
    )


def cuda(store: Any, n_threads: int, **keywords: Any) -> Subject:
    """A read on the simulated device: nothing of its memory may be held, and no turn taken."""
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = str(n_threads)
    in_force.choose(SMALL)
    stored = stored_array(zarr.create_array(store, data=DATA, **LAYOUT))
    device = SimulatedDevice(seed=2, **keywords)
    reads = CudaReads(device)

    def check() -> None:
        gc.collect()
        resources = reads.decoder._devices.resources[device.index]
        assert resources.reads_lock.n_reading == 0
        assert not resources.is_in_read
        free, total = device.memory_nbytes()
        assert total - free <= SMALL["n_slots"] * SMALL["slot_nbytes"], "memory that workspaces do not keep"
        device.check()

    return Subject(lambda: reads.values(stored), [check_threads, check])


def epoch(path: str, n_threads: int) -> Subject:
    """An epoch of batches, of which two are read ahead."""
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = str(n_threads)
    zarr.create_array(LocalStore(path), name="a", data=DATA, dimension_names=["z", "y", "x"], **LAYOUT)
    ds = xr.open_dataset(path, engine="gpuzarr", device="host", consolidated=False)
    loader = xarray_gpuzarr.batches(ds, {"z": 10}, 1)

    def check() -> None:
        """Wait until the threads that read ahead have ended, as they do once nobody knows their iterator."""
        gc.collect()
        deadline = time.monotonic() + 10
        while any(thread.name.startswith("gpuzarr_ahead") for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "threads still read ahead"
            time.sleep(0.001)
        check_threads()

    return Subject(lambda: np.concatenate([batch.a.data[0] for batch in loader]), [check])


def shown(path: str) -> Subject:
    """A read under a bar."""
    progress_bar.DELAY_S = -1.0
    array = zarr.create_array(LocalStore(path), data=DATA, **LAYOUT)

    def read() -> Any:
        console = Console(file=io.StringIO(), force_terminal=True)
        with xarray_gpuzarr.progress(console=console):
            return read_array(array, device="host")

    def check() -> None:
        deadline = time.monotonic() + 10
        while not all(type(f) is io.TextIOWrapper for f in (sys.stdout, sys.stderr)):  # the thread that draws is ending
            assert time.monotonic() < deadline, "standard output is not given back"
            time.sleep(0.01)

    return Subject(read, [check_threads, check])


SUBJECTS: dict[str, Callable[[str, int], Subject]] = {
    "shards": lambda path, n: local(path, n, **LAYOUT),
    "parts": parts,
    "files": lambda path, n: local(path, n, chunks=(10, 32, 32), compressors=None),
    "store": lambda _, n: memory(n, **LAYOUT),
    "objects": lambda _, n: memory(n, chunks=(10, 32, 32)),
    "progress": lambda path, _: shown(path),
    "epoch": epoch,
    "cuda": lambda _, n: cuda(MemoryStore(), n),
    "cuda-files": lambda path, n: cuda(LocalStore(path), n),
    "cuda-direct": lambda path, n: cuda(LocalStore(path), n, reads_files=True),
}


def interrupt_reads(kind: str, n_threads: int, seconds: float) -> int:
    """Interrupt reads in this process, which does nothing else; return the number of reads that were interrupted."""
    HostDecoder.costs = replace(HostDecoder.costs, serial_s=0.0)
    with tempfile.TemporaryDirectory() as path:
        subject = SUBJECTS[kind](path, n_threads)
        gc.freeze()  # checks collect garbage, and need not look at what libraries have made
        n_interrupted = interrupt_for(subject, seconds)
        subject.read()
    return n_interrupted


def interrupt_for(subject: Subject, seconds: float) -> int:
    """Interrupt reads by a signal, at times that spread over the whole read; return how many were interrupted."""
    is_armed = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not is_armed:  # the signal came when the read had ended, and is handled only now
            return
        if is_foreign(frame):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
        else:
            raise KeyboardInterrupt

    def read_interrupted(after_s: float) -> None:
        nonlocal is_armed
        is_armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, after_s))
            subject.read()
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda _: None  # an interrupt within a finalizer is lost
    begin = time.monotonic()
    subject.read()
    longest_s = 1.2 * (time.monotonic() - begin)
    n_interrupted, n = 0, 0
    while time.monotonic() < begin + seconds:
        n += 1
        n_interrupted += subject.interrupted(partial(read_interrupted, longest_s * (n * 0.618034 % 1)))
        if n % 10 == 0:
            subject.read()
    return n_interrupted


if __name__ == "__main__":
    kind, n_threads, seconds = sys.argv[1:]
    sys.stdout.write(f"{interrupt_reads(kind, int(n_threads), float(seconds))} reads were interrupted\n")
