"""Threads read random selections while streams compute on earlier results and free them: every value is compared.

A result is dropped as soon as work on it has been enqueued, so the memory of one read becomes that of the next while
the device may still read it. Under the simulator for a moment, on a GPU for longer.
"""

import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import zarr
from helpers.kernels.on_host import require_compiler
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force, resource_options
from xarray_gpuzarr.read import read, stored_array

SHAPE, CHUNKS, SHARDS = (96, 4000), (8, 500), (32, 2000)
CODECS = {"zstd": ZstdCodec(), "gzip": GzipCodec(), "blosc": BloscCodec(cname="lz4", typesize=4), "raw": ()}
MODES = ("null stream", "own streams", "handed over")
SECONDS = float(os.environ.get("XARRAY_GPUZARR_STRESS_SECONDS", "5"))
"""Of each test on a GPU."""


class SimulatedWorld:
    """What a stress test needs of a device: here, the simulator."""

    n_threads, seconds = 2, 0.4

    def __init__(self, seed, **mutations):
        require_compiler()
        self.device = SimulatedDevice(seed, **mutations)

    def consuming(self, stream):
        """Let the calling thread's array library work on a stream."""
        return stream


class GpuWorld:
    n_threads, seconds = 8, SECONDS

    def __init__(self, _seed):
        from xarray_gpuzarr.cuda.device import NativeDevice  # noqa: PLC0415  # needs CuPy and RMM

        self.device = NativeDevice(0, resource_options())

    def consuming(self, stream):
        return stream.for_cupy


WORLDS = [
    *(pytest.param((SimulatedWorld, seed), id=f"simulated-{seed}") for seed in range(4)),
    *(pytest.param((GpuWorld, seed), id=f"cuda-{seed}", marks=pytest.mark.gpu) for seed in range(3)),
]


@pytest.fixture(scope="module")
def arrays():
    """Stored arrays, and what they hold; some chunks are missing."""
    found = []
    for codec in CODECS.values():
        values = (np.arange(np.prod(SHAPE)) * 7919 % 100_003).astype("i4").reshape(SHAPE)
        values[8:16, 500:1500] = 0
        options = {"chunks": CHUNKS, "shards": SHARDS, "compressors": codec, "filters": None}
        array = zarr.create_array(MemoryStore(), shape=SHAPE, dtype="i4", **options)
        array[...] = values
        found.append((stored_array(array), values))
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Several segments and batches for most reads."""
    options = ResourceOptions(
        slot_nbytes=1 << 16, n_slots=2, batch_nbytes=1 << 18, batch_chunks=1, scratch_nbytes=1 << 28, little="device"
    )
    monkeypatch.setattr(in_force, "options", options)


def any_key(rng, length):
    kind = rng.integers(4)
    if kind == 0:
        return slice(None)
    if kind == 1:
        return np.sort(rng.integers(0, length, rng.integers(1, 40)))
    start, stop = np.sort(rng.integers(0, length + 1, 2)).tolist()
    return slice(start, stop, int(rng.choice([1, 1, 3])))


class Reader:
    """What one thread does."""

    def __init__(self, world, decoder, arrays, mode, seed):
        self.world, self.device, self.decoder, self.arrays = world, world.device, decoder, arrays
        self.rng = np.random.default_rng(seed)
        self.mode = mode
        self.pending = deque()
        self.n_compared = 0

    def run(self, seconds, stop):
        with self.device.activate():
            stream = self.device.consumer_stream() if self.mode == "null stream" else self.device.stream()
            other = self.device.stream() if self.mode == "handed over" else stream
            end = time.monotonic() + seconds
            while time.monotonic() < end and not stop.is_set():
                self.read_and_compute(stream, other)
                while len(self.pending) > 3:
                    self.compare(other)
            while self.pending:
                self.compare(other)
        return self.n_compared

    def read_and_compute(self, stream, other):
        stored, values = self.arrays[self.rng.integers(len(self.arrays))]
        keys = tuple(any_key(self.rng, n) for n in SHAPE)
        with self.on(stream):
            result = read(stored, keys, self.decoder)
        self.order(other, stream)
        with self.on(other):
            computed = result * 2 + result
        self.order(stream, other)
        del result
        self.pending.append((computed, values[keys[0]][:, keys[1]] * 3))

    def compare(self, stream):
        computed, expected = self.pending.popleft()
        with self.on(stream):
            np.testing.assert_array_equal(computed.get(), expected)
        self.n_compared += 1

    def on(self, stream):
        return nullcontext() if self.mode == "null stream" else self.world.consuming(stream)

    def order(self, later, earlier):
        """Let one stream wait for what another has been given so far."""
        if later is not earlier:
            event = self.device.event()
            self.device.record(event, earlier)
            self.device.wait(later, event)


def stress(world, arrays, mode, seed):
    stop, decoder = threading.Event(), CudaDecoder(lambda: world.device)

    def run(number):
        try:
            return Reader(world, decoder, arrays, mode, [seed, number]).run(world.seconds, stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(world.n_threads) as threads:
        return sum(threads.map(run, range(world.n_threads)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", WORLDS)
def test_values_survive_whatever_other_streams_do(world, mode, arrays):
    make, seed = world
    assert stress(make(seed), arrays, mode, seed) >= make.n_threads


@pytest.mark.parametrize("ignored", ["wait", "record"])
def test_a_forgotten_wait_is_found(ignored, arrays):
    with pytest.raises(AssertionError):
        stress(SimulatedWorld(0, mutations=(ignored,)), arrays, "own streams", 0)
