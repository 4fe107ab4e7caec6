"""Reads that fail: what they say, what begins them again, and what they let go of."""

import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import zarr
from helpers.simulated.reads import ON_HOST, CudaReads, limits, scene
from helpers.simulated.simulator import SimulatedDevice
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.cuda.resources import WorkerResources
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.errors import CorruptChunkError, DeviceMemoryError, HostMemoryError
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.plan.read_plan import box_target
from xarray_gpuzarr.plan.selection import OuterSelection, outer_selection
from xarray_gpuzarr.process.progress_bar import ReadProgress
from xarray_gpuzarr.read import read, read_points, reading, stored_array
from xarray_gpuzarr.read.attempts import Attempts
from xarray_gpuzarr.read.tables import Tables

VALUES = np.arange(4096, dtype="i4").reshape(64, 64)


@pytest.fixture
def array():
    return zarr.create_array(MemoryStore(), data=VALUES, chunks=(16, 16), shards=(64, 64))


def test_an_error_that_was_caught_keeps_no_result(monkeypatch):
    store, results, empty = MemoryStore(), [], HostDecoder.empty
    array = zarr.create_array(store, data=VALUES, chunks=(16, 16), compressors=zarr.codecs.ZstdCodec())
    store._store_dict["c/1/1"] = zarr.core.buffer.cpu.Buffer.from_bytes(b"damage")

    def noting(*arguments):
        result = empty(*arguments)
        results.append(weakref.ref(result))
        return result

    monkeypatch.setattr(HostDecoder, "empty", noting)
    gc.disable()
    try:
        for _ in range(3):
            with contextlib.suppress(CorruptChunkError):
                read_array(array, device="host")
        assert [result() for result in results] == [None] * 3
    finally:
        gc.enable()


def lack(*_):
    raise MemoryError("8 TiB")


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (reading, "box_target", lambda stored: read(stored, ..., HostDecoder())),
        (reading, "_read_once", lambda stored: read(stored, ..., HostDecoder())),
        (OuterSelection, "restore", lambda stored: read(stored, ..., HostDecoder())),
        (reading, "group_points", lambda stored: read_points(stored, ([1], [2]), HostDecoder())),
    ],
)
def test_lack_of_memory_is_named_wherever_it_shows(array, monkeypatch, owner, name, call):
    monkeypatch.setattr(owner, name, lack)
    with pytest.raises(HostMemoryError, match=r"(?s)a selection of shape .* 8 TiB"):
        call(stored_array(array))


class Recorded:
    def __init__(self):
        self.done = 0

    def add_bytes(self, *, done=0, wanted=0):
        self.done += done


def test_the_last_table_is_not_done_before_the_read_is(array):
    stored, bars = stored_array(array), Recorded()
    target = box_target(outer_selection(..., stored.shape), stored.spec.grid)
    progress = ReadProgress(bars, target.n_chunks, VALUES.nbytes)

    tables = list(Tables(stored.spec, target, Snapshot(stored.source, stored.spec), progress))

    assert [table.n_chunks for table in tables] == [16]
    assert bars.done == 0
    progress.end()
    assert bars.done == VALUES.nbytes


def test_each_reason_of_the_device_is_good_for_one_more_attempt(array):
    class Decoder(HostDecoder):
        def may_retry(self, err):
            return True

    stored = stored_array(array)
    attempts = Attempts(stored.source, stored.spec, Decoder(), or_host=False)
    words = {"tried": "", "found": "", "do": ""}
    different, too_much = DifferentValuesError("other", **words), DeviceMemoryError("full", **words)

    assert attempts.is_worth_another(different)
    assert not attempts.is_alone  # an array that is the host's now
    assert attempts.is_worth_another(too_much)
    assert attempts.is_alone
    assert not attempts.is_worth_another(different)
    assert not attempts.is_worth_another(too_much)


def test_what_the_host_decodes_for_a_full_device_is_tried_alone_as_often_as_anything(monkeypatch):
    made, is_full, alone, trim = scene(ON_HOST), [], [], WorkerResources.trim
    device = SimulatedDevice(0, fail_allocations=lambda nbytes: bool(is_full) and nbytes >= made.expected.nbytes)
    reads = CudaReads(device, may_decode_again=True)
    monkeypatch.setattr("xarray_gpuzarr.decoders.cuda.decoder._PATIENCE_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(WorkerResources, "trim", lambda self: (alone.append(self.lock.is_alone), trim(self)))
    with limits():
        with ThreadPoolExecutor(2) as threads:  # several have read
            together = Barrier(2, timeout=30)
            list(threads.map(lambda _: (together.wait(), reads.values(made.array)), range(2)))
        is_full.append(True)
        with pytest.raises(DeviceMemoryError):
            reads.read(made.array)

    assert alone == [True] * 4
