"""Many threads read one array at a time with the loops, which hold no lock of Python."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import edge_values, write
from helpers.loops import rows_taken, set_costs
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

N_THREADS, N_READS = 8, 12
SHAPE = (60, 40, 30)
DATA = edge_values("f4", SHAPE)
KEYS = [np.s_[:], np.s_[1:59:2, 3:], np.s_[:, 39:, 1:29], np.s_[7:8], np.s_[::3, ::2, ::5], np.s_[20:40, 10:30, 5:25]]
COMPRESSORS = [None, ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec(level=1), zn.LZ4()]


@contextmanager
def switching_after(seconds):
    """Let threads take Python's lock from each other after that long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.every_value
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: "raw" if c is None else type(c).__name__)
def test_eight_threads_read_one_array(tmp_path, monkeypatch, compressor, sharded):
    """Each of them with helpers of its own, for whom nothing is too little."""
    layout = {"shards": (30, 20, 30)} if sharded else {}
    array = write(LocalStore(tmp_path), DATA, chunks=(10, 10, 15), compressors=compressor, **layout)
    set_costs(monkeypatch, serial_s=0.0)
    together = threading.Barrier(N_THREADS)

    def read(number):
        together.wait()
        for n in range(N_READS):
            key = KEYS[(number + n) % len(KEYS)]
            assert_same_bits(read_array(array, key, device="host"), DATA[key])

    with switching_after(1e-5), rows_taken() as taken, ThreadPoolExecutor(N_THREADS) as threads:
        list(threads.map(read, range(N_THREADS)))

    assert taken.n_rows > 500


def test_other_threads_run_while_the_loops_decode(tmp_path, monkeypatch):
    """One that only counts does so within calls of the loops, though nobody takes Python's lock from another."""
    data = np.zeros((64, 1 << 17), "i4") + np.arange(64, dtype="i4")[:, None]
    array = write(LocalStore(tmp_path), data, chunks=(1, 1 << 15), shards=data.shape, compressors=GzipCodec())
    read_rows = LoopOutput.read_rows
    counted, within, ended = [0], [], threading.Event()

    def count():
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0)  # lets go of the lock

    def noting(*arguments):
        before = counted[0]
        left = read_rows(*arguments)
        within.append(counted[0] - before)
        return left

    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    monkeypatch.setattr(LoopOutput, "read_rows", noting)
    other = threading.Thread(target=count)
    other.start()
    with switching_after(10.0):
        read_array(array, (slice(None), slice(1, None)), device="host")
    ended.set()
    other.join()

    assert sum(within) > 0
