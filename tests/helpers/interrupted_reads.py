"""Reads that are interrupted, again and again: ``python -m helpers.interrupted_reads shards 2 points 1``.

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
from pathlib import Path
from types import CodeType, FrameType
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

_TOOL = 4
_EVENTS = sys.monitoring.events
_WATCHED = _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.CALL | _EVENTS.JUMP  # returns from C come with calls
_WAITS = ("acquire", "get", "sleep", "preadv", "open", "put")
"""C functions that handle signals while they wait, and then have done nothing."""
_HELPERS = str(Path(__file__).parent)
_PACKAGE = str(Path(xarray_gpuzarr.__file__).parent)


class Interrupts:
    """Counts points of the thread that made it, and interrupts at one of them."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._n = 0
        self._at: int | None = None
        self._on = False
        sys.monitoring.use_tool_id(_TOOL, "interrupts")
        for event in (_EVENTS.PY_START, _EVENTS.PY_RESUME, _EVENTS.C_RETURN):
            sys.monitoring.register_callback(_TOOL, event, self._point)
        sys.monitoring.register_callback(_TOOL, _EVENTS.CALL, self._call)
        sys.monitoring.register_callback(_TOOL, _EVENTS.JUMP, self._jump)
        sys.unraisablehook = lambda _: None  # an interrupt within a finalizer is lost

    def run(self, work: Callable[[], Any], at: int | None = None) -> int:
        """Do some work, interrupted at one of its points, counted from 1; return how many points came up."""
        self._n, self._at = 0, at
        sys.monitoring.set_events(_TOOL, _WATCHED)
        self._on = True
        try:
            work()
        finally:
            self._on = False
            sys.monitoring.set_events(_TOOL, 0)
        return self._n

    def _call(self, code: CodeType, offset: int, function: Any, _: object) -> None:
        if getattr(function, "__name__", "") in _WAITS and not hasattr(function, "__code__"):
            self._point(code, offset)

    def _jump(self, code: CodeType, offset: int, to: int) -> None:
        if to <= offset:
            self._point(code, offset)

    def _point(self, code: CodeType, *_: object) -> None:
        if not self._on or threading.get_ident() != self._thread or is_foreign(sys._getframe(1)):
            return
        self._n += 1
        if self._n == self._at:
            self._on = False
            raise KeyboardInterrupt


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


def at_every_point(subject: Subject, first: int = 1, step: int = 1) -> int:
    """Interrupt a read at each of its points in turn, or at every `step`-th."""
    interrupts, n_hits, at = Interrupts(), 0, first
    n_points = max(interrupts.run(subject.read) for _ in range(3))
    while at <= n_points:
        n_hits += subject.interrupted(lambda: interrupts.run(subject.read, at))  # noqa: B023
        subject.read()
        at += step
    return n_hits


def by_timer(subject: Subject, seconds: float) -> int:
    """Interrupt reads by a signal, a little later each time."""
    armed: list[bool] = []

    def interrupt(_: int, frame: Any) -> None:
        if not armed:  # it came when the read had ended, and is handled only now
            return
        if is_foreign(frame):
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
        else:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    begin = time.monotonic()
    subject.read()
    longest = 1.2 * (time.monotonic() - begin)
    n_hits, n, deadline = 0, 0, begin + seconds
    while time.monotonic() < deadline:
        n += 1

        def read() -> None:
            armed[:] = [True]
            try:
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, longest * (n * 0.618034 % 1)))  # noqa: B023
                subject.read()
            finally:
                armed.clear()
                signal.setitimer(signal.ITIMER_REAL, 0)

        n_hits += subject.interrupted(read)
        if n % 10 == 0:
            subject.read()
    return n_hits


def interrupt_reads(kind: str, n_threads: int, way: str, amount: float) -> int:
    """Interrupt reads in this process, which does nothing else; return how many interrupts there were."""
    HostDecoder.costs = replace(HostDecoder.costs, serial_s=0.0)
    with tempfile.TemporaryDirectory() as path:
        subject = SUBJECTS[kind](path, n_threads)
        n = by_timer(subject, amount) if way == "timer" else at_every_point(subject, step=int(amount))
        subject.read()
    return n


if __name__ == "__main__":
    kind, n_threads, way, amount = sys.argv[1:]
    sys.stdout.write(f"{interrupt_reads(kind, int(n_threads), way, float(amount))} interrupts\n")
