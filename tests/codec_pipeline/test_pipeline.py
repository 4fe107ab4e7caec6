"""What the pipeline leaves to zarr-python, what it says of that, and that it never reads what was there before."""

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import opened_by_both, reads_planned
from helpers.data.corpus import counting, write
from helpers.stores.fakes import RecordingStore, ScriptedStore, put, take
from zarr.buffer import cpu
from zarr.core.buffer import BufferPrototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from xarray_gpuzarr import explain, zarr_pipeline
from xarray_gpuzarr.codec_pipeline import reading
from xarray_gpuzarr.codec_pipeline.explanation import ArrayExplanation
from xarray_gpuzarr.read.stopping import on_thread, read_threads

ROOT = Path(__file__).parents[2]
DATA = counting((8, 6))
SHARDED = {"chunks": (2, 3), "shards": (4, 6)}


@pytest.fixture
def array(store):
    """A sharded array, opened with the pipeline."""
    write(store, DATA, **SHARDED)
    with zarr_pipeline():
        return zarr.open_array(store)


@pytest.fixture
def reads(monkeypatch):
    """The thread and the shape of each read of this package."""
    read, noted = reading.read_target, []

    def noting(*args):
        noted.append((threading.current_thread().name, args[2].shape))
        return read(*args)

    monkeypatch.setattr(reading, "read_target", noting)
    return noted


# ---- which pipeline


def test_arrays_of_the_same_store_are_equal(array):
    with zarr_pipeline():
        assert array == zarr.open_array(array.store)
    assert copy.copy(array) == array


COPIES = {"pickled": lambda array: pickle.loads(pickle.dumps(array)), "copied": copy.deepcopy}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (2, 3), "compressors": None}], ids=["sharded", "raw"])
def test_arrays_that_are_made_again_where_another_pipeline_is_set_read_and_write(memory, layout, again):
    write(memory, DATA, **layout)
    with zarr_pipeline():
        opened = zarr.open_array(memory)

    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        array = again(opened)

    np.testing.assert_array_equal(array[:2, :3], DATA[:2, :3])
    array[:3] = 7
    np.testing.assert_array_equal(array[...], np.concatenate([np.full((3, 6), 7), DATA[3:]]))


def test_reading_brings_no_xarray_no_dask_and_no_cupy(local):
    write(local, DATA, **SHARDED)
    code = """
import sys, zarr
before = set(sys.modules)
import xarray_gpuzarr
with xarray_gpuzarr.zarr_pipeline():
    array = zarr.open_array(sys.argv[1])
assert 'xarray_gpuzarr.read' not in sys.modules  # what reads is imported by the first read
array[...]
brought = {n.partition('.')[0] for n in set(sys.modules) - before}
print(*sorted(brought & {'xarray', 'dask', 'cupy', 'rmm', 'distributed', 'pandas'}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, local.root], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "\n"


# ---- what zarr-python reads


LEFT_OVER = {
    "text": np.array(["a", "bcd"]),
    "times": np.array([1, 2], "M8[s]"),
    "fields": np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
}


@pytest.mark.parametrize("kind", LEFT_OVER)
def test_what_cannot_be_planned_is_read_by_zarr(kind, memory):
    zarr.create_array(memory, data=LEFT_OVER[kind], chunks=(1,))
    own, ours = opened_by_both(memory)

    np.testing.assert_array_equal(ours[...], own[...])
    explained = explain(ours)
    assert (explained.ours, explained.where) == (False, "zarr-python")
    assert "not numeric" in explained.why


def test_buffers_of_other_kinds_are_left_to_zarr(array):
    class Mine(cpu.NDBuffer):
        pass

    prototype = BufferPrototype(buffer=cpu.Buffer, nd_buffer=Mine)
    read = array.async_array.codec_pipeline.own.read
    seen = []

    async def noting(batch, out, drop_axes=()):
        seen.append(type(out))
        return await read(batch, out, drop_axes)

    object.__setattr__(array.async_array.codec_pipeline.own, "read", noting)
    np.testing.assert_array_equal(array.get_basic_selection(..., prototype=prototype), DATA)
    assert seen == [Mine]


def test_an_output_that_is_given_is_filled(array):
    for dtype, order in (("i4", "C"), ("i4", "F"), ("f8", "C")):
        out = cpu.NDBuffer(np.zeros((8, 3), dtype, order=order))
        with reads_planned():
            array.get_basic_selection((slice(None), slice(0, 6, 2)), out=out)
        np.testing.assert_array_equal(out.as_numpy_array(), DATA[:, ::2])


def test_an_output_that_is_no_array_is_refused_by_zarr(array):
    with pytest.raises(AttributeError, match="__setitem__"):
        array.get_basic_selection((0, 0), out=cpu.NDBuffer(np.int32(5)))


def test_a_selection_that_is_no_product_is_left_to_zarr(array, monkeypatch):
    monkeypatch.setattr(reading, "join_batch", lambda *_: None)

    np.testing.assert_array_equal(array[1:, ::2], DATA[1:, ::2])


# ---- what was written is what is read


def test_a_rewritten_shard_of_the_same_length_is_read(store):
    write(store, DATA, compressors=None, **SHARDED)
    with zarr_pipeline():
        array = zarr.open_array(store)
    array[...]
    first, second = take(store, "c/0/0"), take(store, "c/1/0")

    put(store, "c/0/0", second)
    put(store, "c/1/0", first)

    np.testing.assert_array_equal(array[...], np.concatenate([DATA[4:], DATA[:4]]))


def test_a_resized_array_is_read(array):
    array.append(DATA + 100)
    array[14, 5] = -1

    with reads_planned():
        np.testing.assert_array_equal(array[:8], DATA)
        assert array[14, 5] == -1
        np.testing.assert_array_equal(array.vindex[[15, 0], [0, 0]], [DATA[7, 0] + 100, DATA[0, 0]])

    array.resize((3, 3))
    with reads_planned():
        np.testing.assert_array_equal(array[...], DATA[:3, :3])


# ---- asyncio


def test_one_read_asks_each_shard_once(memory):
    recording = RecordingStore(memory)
    write(memory, DATA, compressors=None, **SHARDED)
    with zarr_pipeline():
        array = zarr.open_array(recording)
    recording.requests.clear()

    array[...]

    assert recording.requests == [("c/0/0", None), ("c/1/0", None)]


def test_the_event_loop_is_not_held_up(array, monkeypatch):
    read, threads_of_reads, ticks = reading.read_target, [], []

    def slow(*args):
        threads_of_reads.append(threading.current_thread())
        time.sleep(0.2)
        return read(*args)

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def both():
        ticking = asyncio.create_task(tick())
        await array.async_array.getitem(...)
        ticking.cancel()

    monkeypatch.setattr(reading, "read_target", slow)
    monkeypatch.setattr(reading, "SHORT_READ_S", 0.0)
    sync(both())

    assert len(ticks) > 5
    assert threads_of_reads[0].name.startswith("gpuzarr_read")


@pytest.mark.parametrize(
    ("selection", "where"),
    [
        ((slice(0, 2), slice(0, 3)), "zarr_io"),  # a chunk
        ((slice(1, 2), slice(0, 6)), "zarr_io"),
        ((slice(3, 5), slice(0, 3)), "zarr_io"),  # of two shards
        ((slice(0, 4), slice(0, 6)), "gpuzarr_read"),  # more than is little
        ((slice(3, 5), slice(0, 6)), "gpuzarr_read"),
    ],
)
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_little_reads_are_done_on_zarrs_event_loop(tmp_path, kind, selection, where, reads, monkeypatch):
    store = tmp_path / "a.zarr" if kind == "local" else MemoryStore()
    write(store, DATA, **SHARDED)
    with zarr_pipeline():
        array = zarr.open_array(store)
    monkeypatch.setattr(reading, "thread_budget", lambda: 8)
    monkeypatch.setattr(reading, "decoded_rate", lambda _: DATA.dtype.itemsize * 6 / reading.SHORT_READ_S)

    np.testing.assert_array_equal(array[selection], DATA[selection])
    assert [name.startswith(where) for name, _ in reads] == [True]


def test_zarr_python_copies_a_few_raw_chunks_from_memory(memory, reads):
    write(memory, DATA, chunks=(2, 4), compressors=None)
    with zarr_pipeline():
        array = zarr.open_array(memory)

    np.testing.assert_array_equal(array[0, :8], DATA[0, :8])
    np.testing.assert_array_equal(array[...], DATA)

    assert [shape for _, shape in reads] == [DATA.shape]


@pytest.mark.parametrize(("times_as_long", "where"), [(10**6, "gpuzarr"), (1, "zarr_io")])
def test_after_a_read_that_held_zarrs_event_loop_others_run_on_threads_for_a_while(
    array, monkeypatch, times_as_long, where
):
    read, names, now = reading.read_target, [], [0.0]
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(*args):
        names.append(threading.current_thread().name[:7])
        now[0] += 2 * reading.SLOW_READ_S
        return read(*args)

    def read_one():
        np.testing.assert_array_equal(array[:1, :1], DATA[:1, :1])

    monkeypatch.setattr(reading, "THREADS_FACTOR", 0)
    read_one()  # which imports what reads
    monkeypatch.setattr(reading, "THREADS_FACTOR", times_as_long)
    monkeypatch.setattr(reading, "read_target", slow)
    for _ in range(3):
        read_one()

    assert names == ["zarr_io", where, where]


def test_codecs_that_wait_for_zarrs_event_loop_do_not_run_there(tmp_path):
    write(tmp_path / "a.zarr", DATA, compressors=zarr.codecs.numcodecs.BZ2())
    with zarr_pipeline():
        array = zarr.open_array(tmp_path / "a.zarr")

    np.testing.assert_array_equal(array[0:1], DATA[0:1])


def test_reads_on_another_event_loop_leave_it_alone(array, reads):
    found = asyncio.run(array.async_array.getitem((slice(0, 1), slice(0, 1))))

    np.testing.assert_array_equal(found, DATA[:1, :1])
    assert reads[0][0].startswith("gpuzarr_read")


class Stuck(ScriptedStore):
    """Answers no request for chunk bytes until it is let go."""

    def __init__(self, store):
        super().__init__(store, lambda key, byte_range, answer: answer)
        self.asked, self.n_under_way, self.let_go = threading.Event(), 0, False

    async def get(self, key, prototype, byte_range=None):
        if key.startswith("c/"):
            self.n_under_way += 1
            self.asked.set()
            try:
                while not self.let_go:
                    await asyncio.sleep(0.005)
            finally:
                self.n_under_way -= 1
        return await super().get(key, prototype, byte_range)


def test_cancellation_leaves_nothing_behind(memory):
    write(memory, DATA, **SHARDED)
    store = Stuck(memory)
    with zarr_pipeline():
        array = zarr.open_array(store)

    async def cancelled():
        task = asyncio.create_task(array.async_array.getitem(...))
        while not store.asked.is_set():
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
        return store.n_under_way

    assert sync(asyncio.wait_for(cancelled(), 20)) == 0
    store.let_go = True
    np.testing.assert_array_equal(array[...], DATA)


def test_cancellation_waits_for_the_thread():
    began, ended = threading.Event(), []

    def read(stop):
        began.set()
        time.sleep(0.1)
        ended.append(1)
        stop.check()

    async def cancelled():
        task = asyncio.create_task(on_thread(read, read_threads(None)))
        while not began.is_set():
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(ended)

    assert asyncio.run(cancelled()) == [1]


def test_a_read_that_was_cancelled_before_it_began_never_begins(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    busy, began = threading.Event(), []

    async def cancelled():
        first = asyncio.create_task(on_thread(lambda _: busy.wait(20), read_threads(None)))
        second = asyncio.create_task(on_thread(lambda _: began.append(1), read_threads(None)))
        await asyncio.sleep(0.02)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        busy.set()
        assert await first

    asyncio.run(cancelled())
    assert began == []


def test_stores_that_may_be_bound_to_an_event_loop_are_read_there(memory):
    write(memory, DATA, **SHARDED)
    loops = []

    def noting(key, byte_range, answer):
        loops.append(asyncio.get_running_loop())
        return answer

    async def read():
        with zarr_pipeline():
            array = await zarr.api.asynchronous.open_array(store=ScriptedStore(memory, noting))
        np.testing.assert_array_equal(await array.getitem(...), DATA)
        return asyncio.get_running_loop()

    loop = asyncio.run(read())

    assert set(loops) <= {loop}  # and not zarr-python's


def test_blocks_that_overlap_on_threads_restore_the_settings_once(monkeypatch):
    settings = "codec_pipeline.path", "ndbuffer"
    before = [zarr.config.get(name) for name in settings]
    first, second = zarr_pipeline(), zarr_pipeline()
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()

    first.__exit__(None, None, None)
    assert zarr.config.get("codec_pipeline.path") == "xarray_gpuzarr.CodecPipeline"
    second.__exit__(None, None, None)
    assert [zarr.config.get(name) for name in settings] == before


def test_what_is_returned_says_which_pipeline_opens_arrays():
    block = zarr_pipeline()
    assert repr(block) == "<zarr_pipeline(): zarr-python now opens arrays with the codec pipeline of xarray_gpuzarr>"
    with block:
        pass
    assert repr(block) == "<zarr_pipeline(): has ended>"


def test_an_explanation_is_one_line_that_says_who_reads_and_writes(memory):
    array = zarr.create_array(memory, name="a", shape=(4, 4), chunks=(2, 2), dtype="f4")
    text = "/a: zarr-python (opened without zarr_pipeline(): call it, then open the array again)"
    assert (str(explain(array)), repr(explain(array))) == (text, f"<{text}>")

    with zarr_pipeline():
        array = zarr.open_array(memory, path="a")
    text = "/a: host, reads and writes"
    assert (str(explain(array)), repr(explain(array))) == (text, f"<{text}>")
    assert explain(array) == ArrayExplanation(path="/a", ours=True, where="host", why="", why_not_written="")


def test_a_pipeline_that_was_set_within_a_block_stays():
    before = zarr.config.get("codec_pipeline.path")
    other = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    try:
        with zarr_pipeline():
            zarr.config.set({"codec_pipeline.path": other})
            with zarr_pipeline():
                assert zarr.config.get("codec_pipeline.path") == "xarray_gpuzarr.CodecPipeline"
            assert zarr.config.get("codec_pipeline.path") == other
        assert zarr.config.get("codec_pipeline.path") == other
    finally:
        zarr.config.set({"codec_pipeline.path": before})
