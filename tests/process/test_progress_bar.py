"""``xarray_gpuzarr.progress``: what it draws, when it draws nothing, and that it adds up."""

import _thread
import io
import re
import threading

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.callbacks import Callback
from helpers.interrupts import interrupt, interrupting, then_interrupt
from helpers.loops import without_short_reads
from helpers.stores.fakes import put, take
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import xarray_gpuzarr
from xarray_gpuzarr import CorruptChunkError, GpuZarrWarning, read_array
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.process import advice, progress_bar
from xarray_gpuzarr.process.progress_bar import Bars, progress
from xarray_gpuzarr.process.read_progress import ReadProgress

FIELD = np.arange(48 * 20 * 30, dtype="f4").reshape(48, 20, 30)


class Recorded(Bars):
    """Bars that keep what they are told."""

    def __init__(self):
        super().__init__(Console(file=io.StringIO()))
        self.done, self.wanted = [], []

    def add_bytes(self, *, done=0, expected=0):
        self.done.append(done)
        self.wanted.append(expected)


@pytest.fixture
def recorded():
    bars = Recorded()
    progress_bar.shown_bars.append(bars)
    yield bars
    progress_bar.shown_bars.remove(bars)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and no half second to wait for."""
    monkeypatch.setattr(progress_bar, "DELAY_S", -1.0)
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def drawn(console):
    """Return what was written to a console, without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.fixture(params=["shards", "objects"])
def array(request, memory):
    layout = {"chunks": (4, 10, 10)} | ({"shards": (12, 20, 30)} if request.param == "shards" else {})
    array = zarr.create_array(memory, name="t", shape=FIELD.shape, dtype="f4", fill_value=1, **layout)
    array[:36] = FIELD[:36]
    return array


@pytest.mark.every_decoder
@pytest.mark.parametrize(
    "selection", [..., np.s_[3:47, ::2, 4], np.s_[[1, 40], :, -1], np.s_[40:], np.s_[5:5], np.s_[1, 2, 3]]
)
def test_what_is_done_adds_up_to_the_bytes_of_the_result(array, recorded, selection):
    result = read_array(array, selection, device="host")

    assert sum(recorded.wanted) == result.nbytes
    assert sum(recorded.done) == result.nbytes
    assert min(recorded.done) >= 0


@pytest.mark.every_decoder
def test_points_add_up(memory, recorded):
    xr.Dataset({"t": (("x", "y", "z"), FIELD)}).to_zarr(memory, consolidated=False)
    dataset = xr.open_dataset(memory, engine="gpuzarr", consolidated=False, device="host")
    points = {dim: xr.DataArray(index, dims="p") for dim, index in {"x": [1, 40], "y": [2, 2], "z": [0, 29]}.items()}

    values = dataset.t.isel(points).values

    np.testing.assert_array_equal(values, FIELD[[1, 40], [2, 2], [0, 29]])
    assert sum(recorded.done) == sum(recorded.wanted) == values.nbytes


@pytest.mark.every_decoder
def test_a_bar_moves_shard_by_shard(memory, recorded):
    zarr.create_array(memory, name="t", data=FIELD, chunks=(4, 20, 30), shards=(12, 20, 30))

    read_array(zarr.open_array(memory, path="t"), device="host")

    shard_nbytes = FIELD.nbytes // 4
    assert recorded.wanted[0] == FIELD.nbytes
    assert [n for n in recorded.done if n] == [shard_nbytes] * 4


@pytest.mark.every_decoder
@pytest.mark.doubtful_frames
def test_a_read_that_fails_counts_for_nothing(memory, recorded):
    array = zarr.create_array(memory, name="t", data=FIELD, chunks=(12, 20, 30), compressors=zarr.codecs.ZstdCodec())
    key = "t/c/3/0/0"
    put(memory, key, take(memory, key)[:100])

    with pytest.raises(CorruptChunkError):
        read_array(array, device="host")

    assert recorded.wanted[0] == FIELD.nbytes
    assert sum(recorded.done) == sum(recorded.wanted) == 0


def test_a_read_that_is_interrupted_counts_for_nothing(array, recorded, monkeypatch):
    without_short_reads(monkeypatch)
    monkeypatch.setattr(HostDecoder, "decode", interrupt)

    with pytest.raises(KeyboardInterrupt):
        read_array(array, device="host")

    assert recorded.wanted[0] == FIELD.nbytes
    assert sum(recorded.done) == sum(recorded.wanted) == 0


@given(shares=st.lists(st.integers(0, 9)), nbytes=st.integers(0, 10**12))
def test_shares_never_exceed_the_whole(shares, nbytes):
    bars = Recorded()
    progress_of_read = ReadProgress(bars, sum(shares), nbytes)
    for n_chunks in [*shares, 0]:
        progress_of_read.begin_table(n_chunks)
    progress_of_read.end()

    assert sum(bars.done) == nbytes
    assert min(bars.done) >= 0


def test_a_terminal_shows_bytes(array, terminal):
    with progress(console=terminal):
        read_array(array, device="host")

    assert "115.2 kB of 115.2 kB" in drawn(terminal)
    assert "dask" not in drawn(terminal)


def test_a_terminal_shows_the_tasks_of_dask(terminal):
    with progress(console=terminal):
        da.ones(10, chunks=2).sum().compute(scheduler="threads")

    assert re.search(r"dask tasks .* ([1-9]\d*) of \1 ", drawn(terminal))


def test_bytes_have_no_total_while_dask_has_more_tasks(memory, terminal):
    xr.Dataset({"t": (("x", "y", "z"), FIELD)}).to_zarr(memory, consolidated=False)
    dataset = xr.open_dataset(memory, engine="gpuzarr", consolidated=False, chunks={}, device="host")

    with progress(console=terminal):
        dataset.mean().compute()

    assert "115.2 kB, " in drawn(terminal)
    assert "kB of" not in drawn(terminal)


def test_a_block_inside_a_block_adds_nothing(array, terminal):
    other = Console(file=io.StringIO(), force_terminal=True)

    with progress(console=terminal), progress(console=other):
        read_array(array, device="host")

    assert drawn(terminal)
    assert not drawn(other)


def test_nothing_is_drawn_for_short_reads(array):
    console = Console(file=io.StringIO(), force_terminal=True)

    with progress(console=console):
        read_array(array, np.s_[:4], device="host")

    assert not drawn(console)


def test_nothing_is_drawn_where_there_is_no_terminal(array, monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "DELAY_S", -1.0)

    with xarray_gpuzarr.progress():
        assert not progress_bar.shown_bars
        read_array(array, device="host")

    assert capsys.readouterr() == ("", "")


def test_a_notebook_with_ipywidgets_shows_bars(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", {"ipywidgets": "spec"}.get)

    with progress(console=Console(file=io.StringIO(), force_jupyter=True)):
        assert progress_bar.shown_bars


def test_a_notebook_without_ipywidgets_is_told_what_is_missing(monkeypatch):
    monkeypatch.setattr(advice, "warned", set())
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    console = Console(file=io.StringIO(), force_jupyter=True)

    with pytest.warns(GpuZarrWarning, match="pip install ipywidgets") as warned, progress(console=console):
        assert not progress_bar.shown_bars

    assert warned[0].filename == __file__


def test_a_read_that_outlives_the_block_draws_no_more(terminal):
    with progress(console=terminal):
        bars = progress_bar.shown_bars[0]
        bars.add_bytes(expected=2)
    before = drawn(terminal)

    bars.add_bytes(done=2)

    assert drawn(terminal) == before


INTERRUPTED = {
    "as the bars are shown": (progress_bar, "shown_bars", interrupting(list, "append")),
    "as dask is told": (Callback, "active", interrupting(set, "add")),
    "before they begin": (Bars, "begin", interrupt),
    "as the thread that draws is started": (_thread, "start_new_thread", then_interrupt(_thread.start_new_thread)),
    "as the bars are removed": (progress_bar, "shown_bars", interrupting(list, "remove")),
}


@pytest.fixture
def no_callbacks(monkeypatch):
    """dask without the callbacks of other tests, such as that of reads ahead, which stays for good."""
    monkeypatch.setattr(Callback, "active", set())


@pytest.mark.usefixtures("no_callbacks")
@pytest.mark.parametrize(("owner", "name", "value"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_leaves_no_bars_and_nothing_with_dask(terminal, monkeypatch, owner, name, value):
    monkeypatch.setattr(owner, name, value)

    with pytest.raises(KeyboardInterrupt), progress(console=terminal):
        pass

    assert not progress_bar.shown_bars
    assert not Callback.active


@pytest.mark.usefixtures("no_callbacks")
def test_bars_are_drawn_to_their_end_when_their_block_is_interrupted(terminal, monkeypatch):
    has_drawn, draw = threading.Event(), Bars._draw
    monkeypatch.setattr(progress_bar, "PERIOD_S", 60)
    monkeypatch.setattr(Bars, "_draw", lambda bars: (draw(bars), has_drawn.set()))

    def read():
        assert has_drawn.wait(20)  # the next time, unless the block ends, is in a minute
        progress_bar.shown_bars[0].add_bytes(done=2, expected=2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), progress(console=terminal):
        read()

    assert "2 bytes of 2 bytes" in drawn(terminal)
    assert not progress_bar.shown_bars
    assert not Callback.active


def test_bars_whose_end_is_interrupted_are_drawn_no_more(terminal, monkeypatch):
    monkeypatch.setattr(Bars, "close", interrupt)

    with pytest.raises(KeyboardInterrupt), progress(console=terminal):
        bars = progress_bar.shown_bars[0]

    assert bars._ended.acquire(timeout=5)
