"""What a training loop may rely on: order, restarts, memory, and that nothing is left behind."""

import asyncio
import gc
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.datasets import open_ours
from helpers.interrupted_reads import check_requests
from helpers.interrupts import interrupt, then_interrupt
from helpers.stores.fakes import FailAfter, RecordingStore, ScriptedStore, Wrapper
from zarr.storage import MemoryStore

from xarray_gpuzarr import ArrayTypeError, GpuZarrError, KeywordError, OptionError, StoreReadError, batches
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.training import ahead, iterator
from xarray_gpuzarr.training.template import Template

N_TIMES = 24


@pytest.fixture(scope="module")
def written():
    """A store whose values say where they are; each time is an object of its own."""
    store = MemoryStore()
    data = np.arange(N_TIMES * 12.0).reshape(N_TIMES, 3, 4)
    ds = xr.Dataset({"a": (("time", "y", "x"), data)}, coords={"time": np.arange(N_TIMES)})
    ds.to_zarr(store, encoding={"a": {"chunks": (1, 3, 4), "compressors": None}}, consolidated=False)
    return store


@pytest.fixture
def ds(written):
    return open_ours(written, consolidated=False)


def opened(store):
    """Open a store of which only chunks are answered in another way."""
    return open_ours(store, consolidated=False)


def firsts(loader):
    """Return the first element of every sample, batch by batch."""
    return [batch.a.values[:, 0, 0, 0].tolist() for batch in loader]


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuzarr_ahead")]


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    wait_until(lambda: not reading_threads())
    assert crew.n_active == 0


LOADERS = [
    {},
    {"shuffle": True},
    {"shuffle": True, "window": 1000},
    {"random": 10},
    {"window": 700, "stride": {"time": 1}},
]


@pytest.mark.parametrize("keywords", LOADERS)
def test_samples_are_the_same_however_they_are_read(ds, written, keywords, monkeypatch):
    expected = firsts(batches(ds, {"time": 2}, 3, prefetch=0, **keywords))

    assert firsts(batches(ds, {"time": 2}, 3, prefetch=3, **keywords)) == expected
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "7")
    assert firsts(batches(ds, {"time": 2}, 3, prefetch=1, memory=2000, **keywords)) == expected
    chunked = open_ours(written, consolidated=False, chunks={})
    assert firsts(batches(chunked, {"time": 2}, 3, **keywords)) == expected


@pytest.mark.parametrize("keywords", LOADERS)
def test_length_is_the_number_of_batches(ds, keywords):
    for drop_last in (False, True):
        loader = batches(ds, {"time": 2}, 5, drop_last=drop_last, **keywords)
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"batch_size": 16}, "unknown keyword 'batch_size'.*perhaps 'batch'"),
        ({"batch": 16, "window_size": 3}, "unknown keyword 'window_size'.*perhaps 'window'"),
        ({"batch": 16, "prefetch_factor": 3}, "unknown keyword 'prefetch_factor'.*perhaps 'prefetch'"),
        ({"batch": 16, "quux": 3}, "unknown keyword 'quux'.*valid keywords: ds, sizes, batch, .*choose one of these$"),
    ],
)
def test_an_unknown_keyword_is_told_from_those_that_are_known(ds, keywords, named):
    with pytest.raises(KeywordError, match=f"(?s){named}"):
        batches(ds, {"time": 2}, **keywords)


def test_a_keyword_that_is_missing_is_an_error_of_python(ds):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'batch'") as error:
        batches(ds, {"time": 2})
    assert not isinstance(error.value, GpuZarrError)


def test_each_epoch_is_the_next_one(ds):
    loader = batches(ds, {"time": 1}, 5, shuffle=True)

    epochs = [firsts(loader) for _ in range(3)]
    loader.set_epoch(1)

    assert epochs[0] != epochs[1] != epochs[2]
    assert firsts(loader) == epochs[1]
    assert firsts(loader) == epochs[2]


@pytest.mark.every_value
@pytest.mark.parametrize("keywords", LOADERS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_state_goes_on_where_it_was_taken(ds, keywords, prefetch):
    def make():
        return batches(ds, {"time": 2}, 3, seed=5, prefetch=prefetch, **keywords)

    whole = make()
    expected = firsts(whole) + firsts(whole)

    running, n = make(), 0
    states = [running.state_dict()]
    for _ in range(2):
        states += (running.state_dict() for _ in running)

    for n, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert (firsts(resumed) + firsts(resumed))[: len(expected) - n] == expected[n:]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed is 1 and was 0"),
        ({"batch": 4}, "batch is 4 and was 3"),
        ({"shuffle": False}, "shuffle is False and was True"),
        ({"stride": {"time": 1}}, "samples is 'lattice of"),
        ({"rank": 1, "world_size": 2}, "rank is 1 and was 0; world_size is 2 and was 1"),
        ({"window": 10_000}, "window is 48 samples (9.98 kB) and was None"),
        ({"drop_last": True}, "drop_last is True and was False"),
    ],
)
def test_a_state_of_other_batches_is_refused(ds, changes, named):
    usual = {"sizes": {"time": 2}, "batch": 3, "shuffle": True}
    state = batches(ds, **usual).state_dict()

    with pytest.raises(OptionError) as refused:
        batches(ds, **usual | changes).load_state_dict(state)

    assert named in refused.value.found


@pytest.mark.parametrize(
    "state", [None, {}, {"epoch": 0}, {"epoch": "0", "batch": 0, "of": {}}, {"epoch": 0, "batch": -1, "of": {}}]
)
def test_what_is_no_state_is_refused(ds, state):
    with pytest.raises(OptionError, match="not a state of batches"):
        batches(ds, {"time": 2}, 3).load_state_dict(state)


@pytest.mark.parametrize("keywords", LOADERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_all_samples(ds, keywords, drop_last):
    of_ranks = [
        [
            first
            for batch in firsts(batches(ds, {"time": 2}, 2, rank=rank, world_size=3, drop_last=drop_last, **keywords))
            for first in batch
        ]
        for rank in range(3)
    ]

    if "random" not in keywords:  # which may draw a box twice
        together = [first for firsts in of_ranks for first in firsts]
        assert len(together) == len(set(together))
    assert len({len(firsts) for firsts in of_ranks}) == 1 or not drop_last


@pytest.fixture
def process_group(monkeypatch):
    """Let torch.distributed say, once it is asked for, that this is rank 1 of 2."""

    class Distributed:
        is_available = is_initialized = staticmethod(lambda: True)
        get_rank = staticmethod(lambda: 1)
        get_world_size = staticmethod(lambda: 2)

    yield lambda: monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)
    monkeypatch.undo()


@pytest.mark.parametrize("keywords", LOADERS)
def test_ranks_are_those_of_torch_distributed_when_an_epoch_begins(ds, keywords, process_group, monkeypatch):
    usual = {"sizes": {"time": 2}, "batch": 3} | keywords
    before, given = batches(ds, **usual), batches(ds, **usual, rank=0, world_size=1)
    of_all, of_one = firsts(given), batches(ds, **usual, rank=1, world_size=2)
    of_one.set_epoch(1)
    expected, state = firsts(of_one), of_one.state_dict()
    list(before)
    process_group()

    assert len(before) == len(expected) == len(of_one)
    assert firsts(before) == expected
    assert before.state_dict() == state
    assert len(given) == len(of_all)
    in_a_worker = pickle.loads(pickle.dumps(before))
    monkeypatch.delitem(sys.modules, "torch.distributed")
    in_a_worker.set_epoch(1)
    assert firsts(in_a_worker) == expected
    parts = [before.part(number, 2) for number in range(2)]
    assert sum(map(len, parts)) == len(expected)


def test_an_epoch_does_not_go_on_as_another_rank(ds, process_group):
    running = batches(ds, {"time": 2}, 3)
    next(iter(running))
    resumed = batches(ds, {"time": 2}, 3)
    resumed.load_state_dict(running.state_dict())
    process_group()

    assert running.state_dict()["of"]["world_size"] == 1
    with pytest.raises(OptionError, match="another rank") as refused:
        iter(resumed)
    assert "rank 0 of 1" in refused.value.found


def test_ranks_that_are_known_late_have_a_batch_each(ds, process_group):
    loader = batches(ds, {"time": 2}, 12, drop_last=True)
    process_group()

    with pytest.raises(OptionError, match="too few samples for a batch on each rank"):
        iter(loader)


def test_variables_that_are_not_cut_are_read_once(written):
    store = MemoryStore()
    data = xr.Dataset({"a": (("time", "x"), np.zeros((8, 4))), "mask": (("x",), np.arange(4.0))})
    data.to_zarr(store, consolidated=False)
    recording = RecordingStore(store)
    loader = batches(opened(recording), {"time": 2}, 2)

    found = [batch.mask.values for _ in range(2) for batch in loader]

    assert all((mask == np.arange(4)).all() for mask in found)
    assert [key for key, _ in recording.requests].count("mask/c/0") == 1


@pytest.mark.parametrize(("window", "nbytes"), [(None, 3 * 2 * 104), (600, 3 * 4 * 104)])
def test_results_that_are_not_handed_over_stay_within_memory(ds, window, nbytes, monkeypatch):
    loader = batches(ds, {"time": 1}, 2, prefetch=5, memory=nbytes + 100, window=window)
    begun, handed_over, ahead = itertools.count(1), [0], []
    read = Template.read

    def counting(template, start, stop):
        ahead.append(next(begun) - handed_over[0])
        return read(template, start, stop)

    monkeypatch.setattr(Template, "read", counting)
    for n, _ in enumerate(loader, start=1):
        handed_over[0] = n // (2 if window else 1)
        time.sleep(0.01)

    assert max(ahead) in {3, 4}  # one that is being handed over counts here until the loop has it


def n_ahead(loader, n_parts):
    """Return how many results one of several processes of a rank may have."""
    part = loader.part(0, n_parts)
    return part._budget.n_ahead(part._template, part.order, part._samples)


def test_processes_of_a_rank_share_its_memory(ds):
    loader = batches(ds, {"time": 1}, 1, prefetch=9, memory=9 * 104 + 5)

    assert [n_ahead(loader, n_parts) for n_parts in (1, 2, 4)] == [9, 4, 2]


def test_ranks_of_a_machine_share_what_is_free(ds, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.training.iterator.available_nbytes", lambda: 4 * 8 * 104)
    usual = {"sizes": {"time": 1}, "batch": 1, "prefetch": 9}

    assert [n_ahead(batches(ds, **usual), n_parts) for n_parts in (1, 2, 4, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [n_ahead(batches(ds, **usual, rank=3, world_size=8), n_parts) for n_parts in (1, 2, 4)] == [2, 1, 1]
    assert n_ahead(batches(ds, **usual, rank=0, world_size=2), 1) == 4
    assert n_ahead(batches(ds, **usual), 1) == 8


def test_every_part_has_room_for_a_result(ds):
    loader = batches(ds, {"time": 1}, 1, memory=3 * 104)

    assert len(list(loader.part(0, 3))) == 8
    with pytest.raises(OptionError, match="does not suffice") as refused:
        iter(loader.part(0, 4))
    assert refused.value.tried == "memory=312 in 4 processes"


def test_one_result_has_to_fit_in_memory(ds):
    with pytest.raises(OptionError, match="does not suffice") as refused:
        batches(ds, {"time": 2}, 3, memory=100)

    assert refused.value.found == f"one batch takes {3 * 2 * (12 * 8 + 8)} bytes"


class StallingStore(Wrapper):
    """Answers requests for some objects never."""

    stalled: frozenset[str] = frozenset()
    asked: threading.Event = threading.Event()

    async def get(self, key, prototype, byte_range=None):
        if key in self.stalled:
            self.asked.set()
            await asyncio.sleep(1000)
        return await super().get(key, prototype, byte_range)


@pytest.fixture
def stalling(written):
    StallingStore.asked.clear()
    StallingStore.stalled = frozenset(f"a/c/{i}/0/0" for i in range(6, N_TIMES))
    yield opened(StallingStore(written))
    StallingStore.stalled = frozenset()


def test_the_end_of_a_block_stops_reads_that_are_under_way(stalling):
    with iter(batches(stalling, {"time": 2}, 3)) as iterator:
        next(iterator)
        assert StallingStore.asked.wait(20)

    assert reading_threads() == []
    check_requests()
    assert list(iterator) == []


def test_closing_on_another_thread_ends_the_loop(stalling):
    iterator = iter(batches(stalling, {"time": 2}, 3))
    closing = threading.Timer(0.2, iterator.close)
    closing.start()

    assert len(list(iterator)) == 1
    closing.join()
    assert reading_threads() == []


def test_leaving_the_loop_stops_reads_that_are_under_way(stalling):
    for _ in batches(stalling, {"time": 2}, 3):
        assert StallingStore.asked.wait(20)
        break

    wait_until(lambda: not reading_threads())
    check_requests()


def test_an_epoch_ends_its_threads(ds):
    iterator = iter(batches(ds, {"time": 2}, 3))

    assert len(list(iterator)) == 4
    assert reading_threads() == []
    assert list(iterator) == []


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_error_comes_in_place_of_its_batch(written, prefetch):
    fails_at_nine = ScriptedStore(written, lambda key, _, answer: 1 / 0 if key == "a/c/9/0/0" else answer)
    iterator = iter(batches(opened(fails_at_nine), {"time": 2}, 2, prefetch=prefetch))

    assert [next(iterator).time.values[0, 0] for _ in range(2)] == [0, 4]
    with pytest.raises(StoreReadError, match="ZeroDivisionError"):
        next(iterator)
    assert reading_threads() == []
    assert list(iterator) == []


def test_batches_go_on_after_an_error(written):
    script = FailAfter(OSError("gone"), 10)
    loader = batches(opened(ScriptedStore(written, script)), {"time": 2}, 2, prefetch=0)
    with pytest.raises(StoreReadError):
        list(loader)
    state = loader.state_dict()

    script.healed = True
    loader.load_state_dict(state)

    assert state["batch"] == 2
    assert [batch.time.values[0, 0] for batch in loader] == list(range(8, N_TIMES, 4))


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_a_batch_is_waited_for_closes(stalling):
    iterator = iter(batches(stalling, {"time": 2}, 3))
    next(iterator)
    assert StallingStore.asked.wait(20)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()

    with pytest.raises(KeyboardInterrupt):
        next(iterator)

    assert reading_threads() == []
    check_requests()


@pytest.mark.parametrize(
    ("owner", "name", "prefetch"),
    [(ahead.Ahead, "result", 2), (iterator.OnDemand, "result", 0), (Template, "batch", 2), (Template, "batch", 0)],
)
def test_an_epoch_that_is_interrupted_ends(ds, monkeypatch, owner, name, prefetch):
    epoch = iter(batches(ds, {"time": 2}, 3, prefetch=prefetch))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(epoch)

    wait_until(lambda: not reading_threads())
    assert list(epoch) == []


def test_an_epoch_that_is_interrupted_as_its_threads_are_started_ends_them_and_begins_anew(ds, monkeypatch):
    loader = batches(ds, {"time": 2}, 3, shuffle=True)
    expected = firsts(batches(ds, {"time": 2}, 3, shuffle=True))
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "run_uninterrupted", then_interrupt(ahead.run_uninterrupted))
        with pytest.raises(KeyboardInterrupt):
            iter(loader)

    gc.collect()
    wait_until(lambda: not reading_threads())
    assert firsts(loader) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_iterator_says_that_it_was_left_in_another_process(ds):
    loader = batches(ds, {"time": 2}, 3, shuffle=True)
    iterator = iter(loader)
    next(iterator)

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            next(iterator)
        except GpuZarrError as error:
            iterator.close()
            os._exit(0 if "call iter()" in error.do else 2)
        os._exit(3)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(iterator)) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_batches_are_read_in_a_forked_process(tmp_path):
    xr.Dataset({"a": (("time",), np.arange(12.0))}).to_zarr(tmp_path / "s.zarr", consolidated=False)
    loader = batches(open_ours(tmp_path / "s.zarr", consolidated=False), {"time": 2}, 3)
    first = iter(loader)
    next(first)

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        found = [batch.a.values.tolist() for batch in loader]
        os._exit(0 if found == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]] else 3)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_blocks_that_are_read_under_a_lock_are_left_to_dask(written):
    locked = open_ours(written, consolidated=False).chunk({"time": 6}, lock=True)[["a"]].isel(time=slice(1, None))

    loader = batches(locked, {"time": 2}, 2, prefetch=0)

    assert "dask: dask reads it under a lock" in loader.explain().to_text(200)
    assert (next(iter(loader)).a[0] == locked.a[:2]).all()


def test_dask_computes_what_variables_share_once(written):
    computed = []

    def counting(block):
        computed.append(block.shape)
        return block + 1

    chunked = open_ours(written, consolidated=False, chunks={"time": 6})
    mapped = xr.apply_ufunc(counting, chunked.a, dask="parallelized", output_dtypes=[float])
    computed.clear()
    loader = batches(xr.Dataset({"one": mapped, "two": mapped * 2}), {"time": 2}, 12, prefetch=0)

    with dask.config.set({"optimization.fuse.active": False}):
        (batch,) = loader

    assert len(computed) == 4
    assert "dask: dask computes it, with " in loader.explain().to_text(200)
    assert (batch.two == 2 * batch.one).all()


def test_explain_is_a_table_in_a_notebook(ds):
    page = batches(ds.rename(a="<b>"), {"time": 2}, 3).explain()._repr_html_()

    assert "variable</th>" in page
    assert "&lt;b&gt;</td>" in page
    assert "one plan</td>" in page


def test_explain_says_how_each_variable_is_read(ds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    loader = batches(ds.assign(b=("time", np.arange(N_TIMES))), {"time": 2}, 3)

    text = loader.explain().to_text(80)
    assert text == str(loader.explain()) == repr(loader.explain())
    assert sorted(line.split(maxsplit=1) for line in text.splitlines()[2:]) == [
        ["a", "one plan"],
        ["b", "memory"],
        ["time", "memory"],
    ]
    assert repr(loader) == f"<xarray_gpuzarr.Batches: 4 batches of 3 samples>\n{text}"
    assert loader.nbytes == 3 * 2 * (8 + 8 + 12 * 8)
    with pytest.raises(TypeError, match="IterableBatches"):
        loader[0]


TWO_AXES = {"time": 2, "x": 2}
UNUSABLE = {
    "sizes=": [{"sizes": {}}, {"sizes": 3}],
    "sizes['time']=": [{"sizes": {"time": n}} for n in (0, 1.0, True)],
    "batch=": [{"batch": 0}, {"batch": "3"}],
    "stride['time']=": [{"stride": {"time": 0}}],
    "stride=": [{"stride": 1}],
    "random=": [{"random": 0}, {"random": True}],
    "positions=": [
        *({"positions": positions} for positions in ({}, {"time": []})),
        {"sizes": TWO_AXES, "positions": {"time": [0], "x": [0, 1]}},
    ],
    "positions= along 'time'": [{"positions": {"time": at}} for at in ([0.5], [[0]], [[0], [0, 1]], 3, [True])],
    "positions= along 'x'": [{"sizes": TWO_AXES, "positions": {"time": [0]}}],
    "shuffle=": [{"shuffle": 1}],
    "drop_last=": [{"drop_last": None}],
    "window=": [{"window": window} for window in ("much", -1, 1.5)],
    "memory=": [{"memory": "little"}, {"memory": 0}],
    "seed=": [{"seed": -1}, {"seed": None}],
    "prefetch=": [{"prefetch": -1}],
    "rank=": [{"rank": 2, "world_size": 2}],
}
IMPOSSIBLE = {
    "unknown dimensions in sizes=": [{"sizes": {"z": 1}}],
    "unknown dimensions in stride=": [{"stride": {"x": 1}}],
    "unknown dimensions in positions=": [{"positions": {"x": [0]}}],
    "larger than the dataset": [{"sizes": {"time": 25}}],
    "too few samples for a batch on each rank": [{"batch": 13, "drop_last": True}, {"rank": 0, "world_size": 13}],
    "more samples than an epoch can have": [{"random": 2**40}],
    "specified in several ways": [{"random": 3, "stride": {"time": 1}}],
    "positions= along 'time' lie outside": [
        {"positions": {"time": at}} for at in ([-1], [0, 23], np.array([2**63], "u8"))
    ],
    "rank= and world_size= belong together": [{"rank": 1}],
    **{f"unusable {name}": keywords for name, keywords in UNUSABLE.items()},
}


@pytest.mark.parametrize(
    ("keywords", "message"), [(keywords, message) for message, several in IMPOSSIBLE.items() for keywords in several]
)
def test_bad_options_are_refused(ds, keywords, message):
    with pytest.raises(OptionError) as refused:
        batches(ds, **{"sizes": {"time": 2}, "batch": 3} | keywords)

    assert message in refused.value.headline


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda ds: ds.a, ArrayTypeError, "batches takes an xarray.Dataset"),
        (lambda ds: None, ArrayTypeError, "batches takes an xarray.Dataset"),
        (lambda ds: ds.drop_vars("a"), OptionError, "there is nothing to cut"),
        (lambda ds: xr.Dataset(), OptionError, "unknown dimensions"),
        (lambda ds: ds.isel(time=slice(0)), OptionError, "larger than the dataset"),
        (lambda ds: ds.rename(x="sample"), OptionError, "'sample' is taken"),
    ],
)
def test_bad_datasets_are_refused(ds, change, kind, message):
    with pytest.raises(kind, match=message):
        batches(change(ds), {"time": 2}, 3)


@pytest.mark.parametrize(
    ("given", "do"),
    [
        ("era5.zarr", "open one: xarray.open_dataset('era5.zarr', engine=\"gpuzarr\")"),
        (Path("era5.zarr"), "open one: xarray.open_dataset('era5.zarr', engine=\"gpuzarr\")"),
        (zarr.group({}), 'open one: xarray.open_dataset(store, engine="gpuzarr")'),
        (xr.DataArray([1]), "make one: array.to_dataset(name=...)"),
        (xr.DataTree(), "choose a group: tree[path].to_dataset()"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_dataset_is_refused_with_the_way_to_one(given, do):
    with pytest.raises(ArrayTypeError) as refused:
        batches(given, {"time": 2}, 3)

    assert refused.value.do == do


def test_a_batch_goes_over_by_dlpack_without_a_copy(ds):
    (batch, *_) = batches(ds, {"time": 2}, 3, shuffle=True, window=1000)

    shared = np.from_dlpack(batch.a.data)

    assert np.may_share_memory(shared, batch.a.data)
    assert (shared == batch.a.values).all()


@pytest.mark.parametrize(
    ("saved", "loaded", "found"),
    [
        ((["a", "b"], {"stack": "channel"}), (["b", "a"], {"stack": "channel"}), "variables is"),
        ((["a", "b"], {}), (["a"], {}), "variables is"),
        ((["a", "b"], {}), (["a", "b"], {"stack": "channel"}), "stack is 'channel' and was None"),
    ],
)
def test_a_state_of_other_variables_is_refused(saved, loaded, found):
    values = np.arange(24.0).reshape(8, 3)
    ds = xr.Dataset({"a": (("time", "x"), values), "b": (("time", "x"), values + 1)})

    def loader(names, keywords):
        return batches(ds[names], {"time": 2}, 2, shuffle=True, **keywords)

    state = json.loads(json.dumps(loader(*saved).state_dict()))
    loader(*saved).load_state_dict(state)
    with pytest.raises(OptionError, match=found):
        loader(*loaded).load_state_dict(state)


def test_the_order_of_variables_that_are_not_stacked_does_not_matter_to_a_state():
    values = np.arange(24.0).reshape(8, 3)
    ds = xr.Dataset({"a": (("time", "x"), values), "b": (("time", "x"), values + 1)})
    state = batches(ds[["a", "b"]], {"time": 2}, 2).state_dict()
    batches(ds[["b", "a"]], {"time": 2}, 2).load_state_dict(state)
