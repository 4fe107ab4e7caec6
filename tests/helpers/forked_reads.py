"""Forks while other threads read: ``python -m helpers.forked_reads KIND=N ...``, in a process of its own.

Each child's first read must give the right values, or an error that says what to do, and never lock up.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from zarr.storage import LocalStore, MemoryStore, ZipStore

import xarray_gpuzarr
from helpers.interrupted_reads import DATA, LAYOUT
from helpers.simulated.reads import CudaReads
from helpers.simulated.simulator import SimulatedDevice
from xarray_gpuzarr import DeviceUnavailableError, StoreReadError, read_array
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.process import progress_bar

Read = Callable[[], np.ndarray]


def of(store: Any) -> Read:
    array = zarr.create_array(store, data=DATA, **LAYOUT)
    return lambda: read_array(array, device="host")


def of_zip(path: str) -> Read:
    with ZipStore(f"{path}/s.zip", mode="w") as store:
        zarr.create_array(store, data=DATA, **LAYOUT)
    array = zarr.open_array(ZipStore(f"{path}/s.zip", mode="r"))
    return lambda: read_array(array, device="host")


def of_cuda() -> Read:
    reads = CudaReads(SimulatedDevice(seed=2))
    array = zarr.create_array(MemoryStore(), data=DATA, **LAYOUT)
    return lambda: reads.values(array)


KINDS: dict[str, tuple[Callable[[str], Read], str]] = {
    "files": (lambda path: of(LocalStore(path)), ""),
    "store": (lambda _: of(MemoryStore()), ""),
    "progress": (lambda path: of(LocalStore(path)), ""),
    "zip": (of_zip, "spawn"),
    "cuda": (lambda _: of_cuda(), "spawn"),
}
"""How to read, and what the error in the child says; nothing if the read works there."""


@contextlib.contextmanager
def shown(kind: str) -> Iterator[None]:
    if kind != "progress":
        yield
        return
    progress_bar.DELAY_S, progress_bar.PERIOD_S = -1.0, 0.0005
    with Path("/dev/null").open("w") as file, xarray_gpuzarr.progress(console=Console(file=file, force_terminal=True)):
        yield


@contextlib.contextmanager
def read_by_others(read: Read) -> Iterator[None]:
    """Read on three other threads, and print, as long as a block lasts."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            read()
            print(end="", file=sys.stdout)  # noqa: T201  # passes through the bar, if one is shown

    others = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in others:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in others:
            thread.join()


def first_read(read: Read, says: str) -> None:
    """Read in a child, a second time under a bar."""
    signal.alarm(30)  # ends it if it is locked up
    for _ in range(2):
        try:
            right = np.array_equal(read(), DATA) and not says
        except (StoreReadError, DeviceUnavailableError) as error:
            right = bool(says) and says in error.do
        if not right:
            os._exit(3)
        print(end="")  # noqa: T201
    with xarray_gpuzarr.progress(console=Console(file=Path("/dev/null").open("w"), force_terminal=True)):
        if not says:
            read()
    os._exit(0)


def fork(kind: str, n: int) -> None:
    """Fork so many times while others read."""
    make, says = KINDS[kind]
    with tempfile.TemporaryDirectory() as path:
        read = make(path)
        assert np.array_equal(read(), DATA)
        with read_by_others(read), shown(kind):
            for number in range(n):
                if number % 4 == 0:
                    process = multiprocessing.get_context("fork").Process(target=first_read, args=(read, says))
                    process.start()
                    process.join()
                    code = process.exitcode
                else:
                    child = os.fork()
                    if child == 0:
                        first_read(read, says)
                    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code == 0, f"{kind}: child {number} ended with {code}"
        assert np.array_equal(read(), DATA)


def main() -> None:
    HostDecoder.costs = replace(HostDecoder.costs, serial_s=0.0)
    os.environ["XARRAY_GPUZARR_NUM_THREADS"] = "3"
    for word in sys.argv[1:]:
        kind, _, n = word.partition("=")
        fork(kind, int(n))


if __name__ == "__main__":
    main()
