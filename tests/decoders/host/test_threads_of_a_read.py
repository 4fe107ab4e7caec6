"""How many threads the host decoder takes for a read: by how long decoding takes, and not by what is wanted of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import leaving_all, require_loops, rows_taken, set_costs, without_loops, without_short_reads
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.decoders.host.compressors import decoded_rate
from xarray_gpuzarr.decoders.host.schedule import Costs, schedule
from xarray_gpuzarr.decoders.host.tasks import PlanTasks
from xarray_gpuzarr.stored.codecs import BytesSpec, PipelineSpec, ZstdSpec

ZSTD = PipelineSpec(array_to_bytes=BytesSpec(endian="little"), bytes_to_bytes=(ZstdSpec(),))
"""What arrays are written with here: 4 KiB of it are the least for which another thread is woken."""


@pytest.fixture
def most(monkeypatch):
    """The threads that reads ask for, of four."""
    asked, run, call_loops = [], host.crew.run, host.call_loops

    def noting(work, most, *budget):
        asked.append(most)
        run(work, most, *budget)

    def calling(*arguments):
        asked.append(1)
        return call_loops(*arguments)

    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    monkeypatch.setattr(host.crew, "run", noting)
    monkeypatch.setattr(host, "call_loops", calling)
    without_short_reads(monkeypatch)
    set_costs(monkeypatch, serial_s=4096 / decoded_rate(ZSTD))
    return asked


@pytest.mark.parametrize(
    ("selection", "n_threads"),
    [
        ((slice(0, 1), slice(0, 1)), 1),  # of one chunk of 8 KiB
        ((slice(0, 32), slice(0, 32)), 1),  # all of it: a chunk is decoded by one thread
        ((slice(31, 33), slice(0, 1)), 4),  # a little of two
        (([0, 40], [0, 40]), 4),  # a little of four
    ],
)
@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_threads_of_a_read(memory, most, selection, n_threads, shards):
    data = counting((64, 64)).astype("i8")
    array = write(memory, data, chunks=(32, 32), shards=shards)

    found = read_array(array, selection, device="host")

    np.testing.assert_array_equal(found, data[np.ix_(*(np.arange(64)[axis] for axis in selection))])
    assert most == [n_threads]


@pytest.mark.parametrize("compiled", [True, False])
def test_chunks_that_are_next_to_nothing_encoded_are_shared_out(local, most, monkeypatch, compiled):
    """A part of a shard is no longer than what each of four threads takes in four turns."""
    if compiled:
        require_loops()
    else:
        without_loops(monkeypatch)
    rows, place = [], PlanTasks.place
    set_costs(monkeypatch, loops_s=0, least_part_nbytes=1)
    monkeypatch.setattr(PlanTasks, "place", lambda self, chunks: (rows.append(len(chunks.rows)), place(self, chunks)))
    data = np.ones((2048, 64), "i4")
    array = write(local, data, chunks=(16, 64), shards=(1024, 64))

    with rows_taken() as taken:
        assert_same_bits(read_array(array, device="host"), data)

    assert most == [4]
    found = taken.given if compiled else rows
    assert sum(found) == 128
    assert max(found) == 128 // 4 // 4


@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_local_files_are_read_by_the_loops_and_what_they_leave_by_as_many_threads_as_ever(
    tmp_path, monkeypatch, most, shards
):
    require_loops()
    data = counting((64, 64)).astype("i8")
    array = write(str(tmp_path / "a.zarr"), data, chunks=(32, 32), shards=shards)

    assert_same_bits(read_array(array, device="host"), data)
    assert most == [1]
    leaving_all(monkeypatch)
    assert_same_bits(read_array(array, device="host"), data)

    assert most == [1, 1, 4]


@pytest.mark.parametrize(
    ("compressors", "n_threads"), [(None, 1), (zarr.codecs.ZstdCodec(), 4), (zarr.codecs.GzipCodec(), 4)]
)
def test_what_is_decoded_fast_needs_fewer_threads(memory, most, compressors, n_threads):
    data = counting((64, 32))
    array = write(memory, data, chunks=(32, 32), compressors=compressors)

    assert_same_bits(read_array(array, device="host"), data)

    assert most == [n_threads]


@given(
    n_chunks=st.integers(1, 10_000),
    chunk_nbytes=st.sampled_from([64, 4096, 2**17, 2**22, 2**27]),
    rate=st.sampled_from([1e8, 1e9, 1e10]),
    is_copied=st.booleans(),
    is_local=st.booleans(),
    budget=st.integers(1, 64),
)
def test_a_schedule_stays_within_its_budget(n_chunks, chunk_nbytes, rate, is_copied, is_local, budget):
    array = SimpleNamespace(chunk_nbytes=chunk_nbytes, rate=rate, is_copied=is_copied, program=object())
    nbytes = n_chunks * chunk_nbytes
    kind = {"is_remote": not is_local, "is_local": is_local}

    found = schedule.__wrapped__(array, n_chunks, nbytes, **kind, budget=budget, costs=Costs())

    assert 1 <= found.n_threads <= budget
    assert 1 <= found.n_loop_threads <= budget
    if found.rows_a_call is None:  # never both: what the loops leave has none of theirs
        assert 1 in (found.n_threads, found.n_loop_threads)
    assert n_chunks > 1 or found.n_threads == 1
    assert (found.rows_a_call is None) or is_local
    assert nbytes / rate < Costs().serial_s or found.n_threads == budget or n_chunks == 1
    if found.rows_a_call is not None:
        assert found.rows_a_call >= found.n_loop_threads  # no thread of a call is idle while there are chunks
        rows_a_thread = found.rows_a_call // found.n_loop_threads
        assert rows_a_thread == 1 or rows_a_thread * chunk_nbytes / rate <= Costs().call_s
