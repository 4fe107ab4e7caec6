"""What the CUDA decoder asks a store for, and when: as few requests as its threads can share, the next under way."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from helpers.data.corpus import write
from helpers.simulated.reads import CudaReads, limits
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import RecordingStore
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.read import stored_array

KIB, MIB = 1024, 1024 * 1024
SLOT_NBYTES = 16 * MIB


@dataclass
class NotedRequests:
    """A source of local files that notes down what is asked for, and how many later requests are under way then."""

    source: Any
    lookahead: int = 1
    asked: list[ByteRange] = field(default_factory=list)
    under_way: list[int] = field(default_factory=list)
    """Whenever bytes are waited for."""

    is_remote = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def for_one_read(self, **_: Any) -> Any:
        return self

    def start(self, requests: Any, version: Any) -> Any:
        self.asked += [wanted for _, wanted in requests]
        number, pending = len(self.asked), self.source.start(requests, version)

        def finish(allocate: Any) -> Any:
            self.under_way.append(len(self.asked) - number)
            return pending(allocate)

        return finish


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """A shard of 12 MiB in a local file, raw, in chunks of 64 KiB."""
    data = np.arange(12 * MIB // 4, dtype="i4")
    store = LocalStore(tmp_path_factory.mktemp("raw"))
    return write(store, data, chunks=(64 * KIB // 4,), shards=data.shape, compressors=None, filters=None), data


@pytest.mark.parametrize(
    ("n_threads", "nbytes"),
    [
        pytest.param(1, [8 * MIB, 4 * MIB], id="one thread: as long as raw bytes are read to where they stay"),
        pytest.param(2, [4 * MIB] * 3, id="two requests of a slot for each thread"),
        pytest.param(16, [2 * MIB] * 6, id="never shorter than the store's own rule"),
    ],
)
def test_requests_are_as_long_as_threads_can_share(raw, monkeypatch, n_threads, nbytes):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(n_threads))

    assert sorted(lengths_of_requests(*raw)) == sorted(nbytes)


def test_no_chunk_is_put_together_from_answers_without_a_version(monkeypatch):
    monkeypatch.setattr(options.in_force, "options", options.FetchOptions(max_gap_nbytes=0, max_request_nbytes=100))
    memory, data = RecordingStore(MemoryStore()), np.arange(1, 241, dtype="i4")
    array = write(memory, data, chunks=(40,), shards=(240,), compressors=None, filters=None)
    memory.requests.clear()

    values = CudaReads(SimulatedDevice()).values(array, slice(40, 120))

    np.testing.assert_array_equal(values, data[40:120])
    assert {(end - first) % 160 for _, first, end in memory.ranges} == {0}


def lengths_of_requests(array, data):
    """Read an array; return how long each request for chunks was."""
    stored = stored_array(array)
    source = NotedRequests(stored.source, stored.source.lookahead)
    with limits(slot_nbytes=SLOT_NBYTES, batch_nbytes=64 * MIB, scratch_nbytes=256 * MIB):
        values = CudaReads(SimulatedDevice()).values(replace(stored, source=source))
    np.testing.assert_array_equal(values, data)
    return [wanted.nbytes for wanted in source.asked]


def test_length_that_was_asked_for_is_kept(raw, monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    monkeypatch.setattr(options.in_force, "options", replace(options.fetch_options(), max_request_nbytes=MIB))

    assert lengths_of_requests(*raw) == [MIB] * 12


N_REQUESTS = 12 * 16
BATCHES = {"slot_nbytes": MIB, "batch_nbytes": 3 * MIB, "scratch_nbytes": 256 * MIB}
"""Four batches of three slots each, with sixteen requests for each of them."""


@pytest.fixture
def early(raw, monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    monkeypatch.setattr(options.in_force, "options", replace(options.fetch_options(), max_request_nbytes=64 * KIB))
    stored = stored_array(raw[0])
    return replace(stored, source=NotedRequests(stored.source, lookahead=6))


def test_store_never_rests_between_slots_and_batches(raw, early):
    device = SimulatedDevice()

    with limits(**BATCHES):
        values = CudaReads(device).values(early)

    np.testing.assert_array_equal(values, raw[1])
    assert early.source.under_way == [6] * (N_REQUESTS - 6) + [5, 4, 3, 2, 1, 0]
    assert early.source.asked == sorted(early.source.asked, key=lambda wanted: wanted.offset)


def test_store_never_rests_between_small_shards(tmp_path, early):
    data = np.arange(12 * MIB // 4, dtype="i4")
    shard = (64 * KIB // 4,)
    array = write(LocalStore(tmp_path), data, chunks=(16 * KIB // 4,), shards=shard, compressors=None, filters=None)
    stored = stored_array(array)
    source = NotedRequests(stored.source, lookahead=40)  # more than a slot has

    with limits(**BATCHES):
        values = CudaReads(SimulatedDevice()).values(replace(stored, source=source))

    np.testing.assert_array_equal(values, data)
    in_slot = MIB // (64 * KIB)
    assert len(source.under_way) == N_REQUESTS
    assert min(source.under_way[:-40]) > 40 - in_slot


def test_batch_in_halves_is_asked_for_again_and_what_follows_once(raw, early):
    def fail(_nbytes: int) -> bool:
        failed.append(len(early.source.under_way) >= 16)
        return failed[-1] and sum(failed) == 1

    failed: list[bool] = []
    with limits(**BATCHES):
        values = CudaReads(SimulatedDevice(fail_allocations=fail)).values(early)

    np.testing.assert_array_equal(values, raw[1])
    before, again = early.source.asked[:-N_REQUESTS], early.source.asked[-N_REQUESTS:]
    assert sum(failed) > 0
    assert again == sorted(again, key=lambda wanted: wanted.offset)
    assert before == again[: len(before)]
    assert len(before) <= 3 * 16 + 6
