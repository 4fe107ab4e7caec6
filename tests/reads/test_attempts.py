"""Reads that fail: what they say, what begins them again, and what they let go of."""

import asyncio
import contextlib
import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from helpers.interrupted_reads import check_requests
from helpers.interrupts import interrupt
from helpers.loops import without_short_reads
from helpers.simulated.reads import ON_HOST, CudaReads, limits, scene
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import Wrapper, is_data
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.cuda.resources import DeviceResources
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    DeviceMemoryError,
    HostMemoryError,
    MetadataError,
    ShardIndexError,
    StoreReadError,
)
from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.read import read, read_points, reading, stored_array
from xarray_gpuzarr.read.attempts import Attempts

VALUES = np.arange(4096, dtype="i4").reshape(64, 64)


@pytest.fixture
def array():
    return zarr.create_array(MemoryStore(), data=VALUES, chunks=(16, 16), shards=(64, 64))


def shard_of(path):
    return path / "a/c/0"


DAMAGES = {
    "chunk": (CorruptChunkError, lambda path: shard_of(path).write_bytes(bytes(8) + shard_of(path).read_bytes()[8:])),
    "index": (ShardIndexError, lambda path: shard_of(path).write_bytes(shard_of(path).read_bytes()[:-1])),
    "metadata": (MetadataError, lambda path: write_array(path, "i8", 4)),
}
"""Of a store: the error of a read, and what makes it."""


def write_array(store, dtype="i4", chunk=8):
    data, codecs = np.arange(32, dtype=dtype), zarr.codecs.ZstdCodec()
    return zarr.create_array(
        store, name="a", data=data, chunks=(chunk,), shards=(16,), compressors=codecs, overwrite=True
    )


@pytest.mark.parametrize(("kind", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_an_error_of_a_read_names_the_store_once(tmp_path, kind, damage):
    array = write_array(tmp_path / "copy-7.zarr")
    damage(tmp_path / "copy-7.zarr")

    with pytest.raises(kind) as caught:
        read_array(array, device="host")

    assert caught.value.tried.startswith(f"in {tmp_path / 'copy-7.zarr'}: ")
    assert str(caught.value).count("copy-7.zarr") == 1


def test_an_error_of_a_store_that_has_named_the_object_is_left_as_it_is(tmp_path):
    array = write_array(tmp_path / "copy-7.zarr")

    with patch("os.open", side_effect=PermissionError("not yours")), pytest.raises(StoreReadError) as caught:
        read_array(array, device="host")

    assert str(caught.value).count("copy-7.zarr") == 1


def test_what_zarr_cannot_read_names_the_store(tmp_path):
    array = zarr.create_array(tmp_path / "copy-7.zarr", name="a", data=np.array(["x", "y"]), chunks=(1,))
    (tmp_path / "copy-7.zarr/a/c/0").write_bytes(b"damage")

    with pytest.raises(StoreReadError, match=r"tried: in .*copy-7\.zarr: a selection"):
        read_array(array, device="host")


def test_invalid_metadata_name_the_store(tmp_path):
    write_array(tmp_path / "copy-7.zarr")
    document = tmp_path / "copy-7.zarr/a/zarr.json"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"shape": [2**63]}))

    with pytest.raises(MetadataError, match=r"tried: in .*copy-7\.zarr: its shapes"):
        read_array(zarr.open_array(tmp_path / "copy-7.zarr", path="a", mode="r"), device="host")


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


class HangingStore(Wrapper):
    """Never answers a request for the bytes of chunks."""

    async def get(self, key, prototype, byte_range=None):
        if is_data(key):
            await asyncio.sleep(1000)
        return await super().get(key, prototype, byte_range)


def damaged(*_, **__):
    raise CorruptChunkError("a", tried="b", found="c", do="d")


@pytest.mark.parametrize("fail", [damaged, interrupt])
def test_requests_of_a_read_that_fails_are_cancelled(array, monkeypatch, fail):
    monkeypatch.setattr(HostDecoder, "decode", fail)  # the indexes have been requested by then

    with pytest.raises((CorruptChunkError, KeyboardInterrupt)):
        read_array(zarr.open_array(HangingStore(array.store), mode="r"), device="host")

    check_requests()


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
    without_short_reads(monkeypatch)
    monkeypatch.setattr(owner, name, lack)
    with pytest.raises(HostMemoryError, match=r"(?s)a selection of shape .* 8 TiB"):
        call(stored_array(array))


def test_each_reason_of_the_device_is_good_for_one_more_attempt(array):
    class Decoder(HostDecoder):
        def may_retry(self, err):
            return True

    stored = stored_array(array)
    attempts = Attempts(stored.source, stored.spec, Decoder(), or_host=False)
    words = {"tried": "", "found": "", "do": ""}
    different, too_much = DifferentValuesError("other", **words), DeviceMemoryError("full", **words)

    assert attempts.prepare_retry(different)
    assert not attempts.is_alone  # an array that is the host's now
    assert attempts.prepare_retry(too_much)
    assert attempts.is_alone
    assert not attempts.prepare_retry(different)
    assert not attempts.prepare_retry(too_much)


def test_what_the_host_decodes_for_a_full_device_is_tried_alone_as_often_as_anything(monkeypatch):
    made, is_full, alone, trim = scene(ON_HOST), [], [], DeviceResources.trim
    device = SimulatedDevice(0, fail_allocations=lambda nbytes: bool(is_full) and nbytes >= made.expected.nbytes)
    reads = CudaReads(device, may_decode_again=True)
    monkeypatch.setattr("xarray_gpuzarr.cuda.resources._PATIENCE_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(DeviceResources, "trim", lambda self: (alone.append(self.reads_lock.is_alone), trim(self)))
    with limits():
        with ThreadPoolExecutor(2) as threads:  # several have read
            together = Barrier(2, timeout=30)
            list(threads.map(lambda _: (together.wait(), reads.values(made.array)), range(2)))
        is_full.append(True)
        with pytest.raises(DeviceMemoryError):
            reads.read(made.array)

    assert alone == [True] * 4
