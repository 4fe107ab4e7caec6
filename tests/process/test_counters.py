"""What is counted while reading, and the table of it: sums that an independent look at the store confirms."""

import gc
import os
import pickle
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.data.corpus import counting, write
from helpers.interrupts import interrupt
from helpers.loops import without_short_reads
from helpers.stores.fakes import FailAfter, ScriptedStore, drop
from zarr.codecs import ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr import StoreReadError
from xarray_gpuzarr.cluster.worker_stats import ProcessStats, Stats
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.process import counters as module
from xarray_gpuzarr.process.counters import STAGES, Account, Counters, Counts, counters
from xarray_gpuzarr.process.crew import Crew
from xarray_gpuzarr.read import read_points, stored_array, tables

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs")

DATA = counting((8, 12))
SHARDED = {"chunks": (2, 3), "shards": (4, 6)}
N_SHARDS, CHUNK_NBYTES = 4, 2 * 3 * DATA.itemsize


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def answered():
    """A store that adds up what it answers."""
    store = ScriptedStore(MemoryStore(), lambda _key, _range, answer: (sizes.append(len(answer or b"")), answer)[1])
    sizes = store.sizes = []
    return store


def counted(call):
    """Return what a call has added to this process's counts."""
    before = counters.snapshot()
    call()
    return counters.snapshot() - before


def read(array, selection=None):
    return lambda: xarray_gpuzarr.read_array(array, selection, device="host")


def test_every_byte_of_the_store_is_counted(answered):
    array = write(answered, DATA, **SHARDED, compressors=ZstdCodec())
    answered.sizes.clear()

    counts = counted(read(array))

    assert counts.read_nbytes == sum(answered.sizes) > N_SHARDS * 4
    assert (counts.n_reads, counts.n_shards, counts.decoded_nbytes) == (1, N_SHARDS, DATA.nbytes)
    assert counts.copied_nbytes == 0
    assert set(counts.seconds) <= set(STAGES)
    assert counts.seconds["decode"] > 0


def test_the_wait_for_a_whole_shard_is_fetching(answered):
    array = write(answered, DATA, **SHARDED)
    requests = []
    answered.script = lambda *request: (requests.append(request), time.sleep(0.05), request[2])[2]

    counts = counted(read(array))

    assert len(requests) == N_SHARDS  # each brings an index and its chunks
    assert counts.seconds["fetch"] > max(0.04, counts.seconds["index"])


def test_streamed_chunks_are_counted(tmp_path):
    data = np.random.default_rng(0).integers(0, 50, 5_000_000, "i4")  # above the length that is streamed
    array = write(LocalStore(tmp_path), data, name="a", chunks=(5_000_000,), compressors=ZstdCodec())

    counts = counted(read(array))

    assert (counts.read_nbytes, counts.n_shards) == ((tmp_path / "a/c/0").stat().st_size, 1)


def test_a_selection_counts_the_chunks_that_it_touches(answered):
    array = write(answered, DATA, **SHARDED, compressors=None)
    answered.sizes.clear()

    counts = counted(read(array, (slice(0, 1), slice(0, 4))))

    assert (counts.n_shards, counts.decoded_nbytes) == (1, 2 * CHUNK_NBYTES)
    assert counts.read_nbytes == sum(answered.sizes)


def test_points_are_counted(memory):
    stored = stored_array(write(memory, DATA, **SHARDED))

    counts = counted(lambda: read_points(stored, (np.array([0, 1, 7]), np.array([0, 1, 11])), decoder_for("host")))

    assert (counts.n_reads, counts.n_shards, counts.decoded_nbytes) == (1, 2, 2 * CHUNK_NBYTES)


def test_what_is_missing_is_not_decoded(memory):
    array = write(memory, DATA, **SHARDED)
    drop(memory, "c/1/1")

    counts = counted(read(array))

    assert (counts.n_shards, counts.decoded_nbytes) == (N_SHARDS, DATA.nbytes * 3 // 4)


def test_unsharded_chunks_count_as_shards(memory):
    counts = counted(read(write(memory, DATA, chunks=(2, 3))))

    assert (counts.n_shards, counts.decoded_nbytes) == (16, DATA.nbytes)


def test_what_zarr_python_reads_is_counted_apart(memory):
    text = zarr.create_array(memory, shape=(4,), dtype="U3")

    counts = counted(read(text))

    assert (counts.n_reads, counts.n_shards, counts.decoded_nbytes) == (1, 0, 4 * 3 * 4)
    assert [stage for stage, seconds in counts.seconds.items() if seconds] == ["zarr"]


def test_a_codec_of_zarr_python_is_decoding(memory):
    counts = counted(read(write(memory, DATA, **SHARDED, compressors=zn.BZ2())))

    assert counts.decoded_nbytes == DATA.nbytes
    assert "zarr" not in counts.seconds or counts.seconds["zarr"] == 0


def test_a_failed_read_counts_its_bytes_only(answered):
    array = write(answered, DATA, **SHARDED)
    answered.sizes.clear()
    good, answered.script = answered.script, FailAfter(OSError("no"), n_good=1)
    first = answered.script
    answered.script = lambda *request: good(*request[:2], first(*request))

    def fail():
        with pytest.raises(StoreReadError):
            read(array)()

    counts = counted(fail)

    assert (counts.n_reads, counts.n_shards, counts.decoded_nbytes) == (0, 0, 0)
    assert counts.read_nbytes in (0, *answered.sizes)  # the first answer may come too late to be taken
    assert counters.local.account.stage is None


def test_a_stage_inside_another_stops_the_outer_clock(clock):
    mine = Counters()

    with mine.stage("decode"):
        clock.now += 1
        with mine.stage("fetch"):
            clock.now += 10
            with mine.stage("fetch"):
                clock.now += 100
        clock.now += 1000
    clock.now += 10_000

    assert mine.snapshot().seconds == {"fetch": 110, "decode": 1001}


def test_a_stage_ends_with_an_exception(clock):
    mine = Counters()

    def fail():
        with mine.stage("index"):
            clock.now += 3
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.now += 5

    assert mine.snapshot().seconds == {"index": 3}
    assert mine.local.account.stage is None


TEXT = np.array(["a", "b"])
"""What zarr-python reads."""


@pytest.mark.parametrize(
    ("place", "data"), [("planning", DATA), ("leaving the stage", DATA), ("leaving the stage", TEXT)]
)
def test_an_interrupted_read_leaves_its_stage(memory, monkeypatch, place, data):
    without_short_reads(monkeypatch)
    array, switch = zarr.create_array(memory, data=data), Account.switch
    if place == "planning":
        monkeypatch.setattr(tables, "plan_read", interrupt)
    else:
        monkeypatch.setattr(Account, "switch", lambda *args: switch(*args) if args[1] else interrupt())

    with pytest.raises(KeyboardInterrupt):
        xarray_gpuzarr.read_array(array, device="host")

    assert counters.local.account.stage is None


def test_a_second_attempt_begins_in_the_stage_of_the_first(memory, monkeypatch):
    without_short_reads(monkeypatch)
    array, stages = zarr.create_array(memory, data=DATA, **SHARDED), []
    plan_read, decode = tables.plan_read, HostDecoder.decode

    def lacking_memory_once(*args):
        if len(stages) == 1:
            raise MemoryError
        return plan_read(*args)

    def noting(*args, **keywords):
        stages.append(counters.local.account.stage)
        return decode(*args, **keywords)

    monkeypatch.setattr(tables, "plan_read", lacking_memory_once)
    monkeypatch.setattr(HostDecoder, "decode", noting)

    xarray_gpuzarr.read_array(array, device="host")

    assert stages == ["decode", "decode"]


def test_threads_that_have_ended_count_on_and_keep_no_memory():
    mine = Counters()
    kind = type(mine.local.account)
    n_before = sum(type(each) is kind for each in gc.get_objects())

    for _ in range(50):
        thread = threading.Thread(target=mine.add, kwargs={"n_reads": 1})
        thread.start()
        thread.join()

    assert mine.snapshot().n_reads == 50
    assert sum(type(each) is kind for each in gc.get_objects()) <= n_before + 1


def test_helping_threads_are_in_the_stage_of_their_caller(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "3")
    together, stages = threading.Barrier(3, timeout=30), []

    def work(_go_on):
        stages.append(counters.local.account.stage)
        together.wait()

    with counters.stage("transfer"):
        Crew().run(work, max_threads=3)

    assert stages == ["transfer"] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_begins_at_nothing():
    mine = counters.process
    counters.add(n_reads=1)
    receiver, sender = os.pipe()

    if os.fork() == 0:
        os.write(sender, pickle.dumps((counters.process, counters.snapshot())))
        os._exit(0)
    os.wait()
    process, counts = pickle.loads(os.read(receiver, 10_000))

    assert process != mine
    assert counts == Counts()


def row(name, process, **counts):
    return ProcessStats(workers=(name,), process=process, counts=Counts(**counts))


def test_difference_starts_anew_with_a_restarted_worker():
    before = Stats(rows=(row("a", "1", n_reads=5, seconds={"fetch": 2.0}), row("b", "2", n_reads=7)))
    after = Stats(rows=(row("a", "1", n_reads=6, seconds={"fetch": 2.5, "decode": 1.0}), row("b", "3", n_reads=2)))

    between = after - before

    assert [r.counts.n_reads for r in between.rows] == [1, 2]
    assert between.rows[0].counts.seconds == {"fetch": 0.5, "decode": 1.0}
    assert between.total.n_reads == 3


def test_table_has_a_line_for_each_worker_and_their_sum(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    rows = (
        row("gpu-0", "1", n_reads=2, n_shards=3, read_nbytes=4_000, decoded_nbytes=5_000_000, seconds={"fetch": 1.25}),
        row("gpu-1", "2", n_reads=20, n_shards=30, copied_nbytes=7, seconds={"wait": 0.5}),
    )

    lines = [line.split() for line in str(Stats(rows=rows, note="A note.")).splitlines() if line.strip(" ─")]

    assert lines == [
        ["worker", "reads", "shards", "read", "decoded", "to", "the", "GPU", "fetch", "s", "wait", "s"],
        ["gpu-0", "2", "3", "4", "kB", "5", "MB", "0", "B", "1.25", "0.00"],
        ["gpu-1", "20", "30", "0", "B", "0", "B", "7", "B", "0.00", "0.50"],
        ["all", "22", "33", "4", "kB", "5", "MB", "7", "B", "1.25", "0.50"],
        ["A", "note."],
    ]


def test_this_process_is_asked_without_a_client(memory):
    before = xarray_gpuzarr.stats()
    read(write(memory, DATA, **SHARDED))()

    between = xarray_gpuzarr.stats() - before

    (mine,) = between.rows
    assert (mine.label, mine.counts.n_shards) == ("this process", N_SHARDS)
    assert pickle.loads(pickle.dumps(between)) == between
