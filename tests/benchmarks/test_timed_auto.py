"""Reads by a calibration against both sides alone, on the modelled device; and the clock of threads that take turns."""

import threading
from dataclasses import replace

import pytest
from helpers.every_pair import usually

from benchmarks.timed.auto import CODECS, MOST_SLOWER, Machine, main, sweep
from benchmarks.timed.rates import Rates
from benchmarks.timed.virtual_clock import VirtualClock, VirtualCrew
from xarray_gpuzarr.decoders.cost.model import Split, best_split
from xarray_gpuzarr.decoders.cost.taken import Taken
from xarray_gpuzarr.decoders.cuda import split as shares
from xarray_gpuzarr.decoders.cuda.batches.learnt import learnt_of
from xarray_gpuzarr.process.device_options import in_force

LAYOUTS = (40_000, 1_048_576), usually((24, 200), full=(24, 100, 400))
N_THREADS = usually((4,), full=(1, 4))
FEW = ("zstd",), (1_048_576,), usually((24, 100, 300), full=(24, 100, 300, 768)), (1, 4)


def slower(cells, by="learnt"):
    return {
        (c.layout.codec, c.layout.chunk_nbytes, c.layout.n_chunks, c.layout.n_threads): round(c.slower, 2)
        for c in cells
        if c.slower > MOST_SLOWER[by]
    }


@pytest.mark.every_value
@pytest.mark.parametrize(("by", "in_turn"), [("learnt", False), ("learnt", True), ("calibrated", False)])
@pytest.mark.parametrize("codec", CODECS)
def test_no_read_is_slower_than_on_the_better_side(codec, by, in_turn):
    cells = list(sweep([codec], *LAYOUTS, N_THREADS, Rates(in_turn=in_turn), by=by))

    assert slower(cells, by) == {}
    assert len(cells) == 2 * len(LAYOUTS[1]) * len(N_THREADS)


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_read_of_many_shards_is_much_quicker_than_by_the_device_alone(in_turn):
    (cell,) = (
        cell
        for cell in sweep(["zstd"], [1_000_000], [usually(200, full=400)], [1], Rates(in_turn=in_turn), shards=[24])
        if cell.layout.n_shards > 1
    )

    assert cell.seconds["device"] / cell.seconds["auto"] > 1.45
    assert cell.first_s <= 1.01 * cell.seconds["device"]


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("slots", [528, 1056])
def test_threads_keep_the_device_busy_whichever_it_is(in_turn, slots):
    """Eight threads of tasks, of which each decodes a fifth of a wave or less; nothing is known before."""
    machine, n_chunks, n_shards = Machine(Rates(in_turn=in_turn, n_decoding=slots)), 100, 40
    with machine.running():
        in_force.choose({"calibration": "off"})
        stored = machine.stored("zstd", 1_024_000, n_chunks, n_shards)
        machine.by_shards(stored, n_shards, 8)
        seconds = machine.by_shards(stored, n_shards, 8)

    found = learnt_of(machine.device.as_api)
    assert found.overlaps is not in_turn
    assert found.wave == slots or not found.is_wave_full
    n_at_once = min(8 * n_chunks, slots)
    assert seconds < 1.3 * n_shards * n_chunks / n_at_once * 0.03


def test_sharing_pays():
    cells = list(sweep(*FEW, by="calibrated"))

    assert slower(cells, "calibrated") == {}
    shared = [c for c in cells if 0 < c.n_host < c.layout.n_chunks]
    assert len(shared) >= usually(1, full=2)
    assert min(c.slower for c in shared) < 0.9
    assert min(c.slower for c in cells) < 0.5  # few chunks that the host has whole


BROKEN = {
    "the device has all": lambda *given, **_: Split(n_host=0, seconds=1),
    "the host has all": lambda _, __, n, *___, **____: Split(n_host=n, seconds=1),
    "the host has half": lambda _, __, n, *___, **____: Split(n_host=n // 2, seconds=1),
    "one more read takes no threads": lambda *given, **_: best_split(*given),
    "too many are the host's": lambda *given, **named: more(best_split(*given, **named), given[2]),
}


def more(split, n):
    return replace(split, n_host=min(n, 4 * split.n_host))


@pytest.mark.parametrize("decision", BROKEN)
def test_another_decision_would_be_slower(decision, monkeypatch):
    monkeypatch.setattr(shares, "best_split", BROKEN[decision])
    assert any(cell.slower > MOST_SLOWER["calibrated"] for cell in sweep(*FEW, by="calibrated"))


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_another_steering_would_be_slower(part, monkeypatch):
    monkeypatch.setattr(Taken, "for_host", lambda _, n, *__: round(part * n))
    assert any(cell.slower > MOST_SLOWER["learnt"] for cell in sweep(*FEW))


def test_the_command_says_what_was_slower(capsys):
    assert main(["--codec", "lz4", "--threads", "1", "--lengths", "16384", "--chunks", "1", "6", "24"]) == 0
    printed = capsys.readouterr().out
    assert "lz4, 1 thread: auto's time over the better side's" in printed
    assert "more than 3% slower than the better side: 0" in printed


# ---- turns


def test_who_sleeps_least_goes_on_first():
    clock, order = VirtualClock(), []

    def job(name, *naps):
        for nap in naps:
            clock.sleep(nap)
            order.append((name, clock.now()))

    seconds = clock.run([lambda: job("a", 3, 3), lambda: job("b", 2, 2, 2), lambda: job("c", 10)])

    assert order == [("b", 2), ("a", 3), ("b", 4), ("a", 6), ("b", 6), ("c", 10)]
    assert seconds == 10


def test_an_error_ends_a_run_once_all_jobs_have_ended():
    clock, done = VirtualClock(), []

    def fails():
        raise KeyError("a job")

    with pytest.raises(KeyError):
        clock.run([fails, lambda: (clock.sleep(1), done.append(1))])
    assert done == [1]


def test_a_crew_does_tasks_side_by_side_within_the_budget():
    clock, ended, n_threads = VirtualClock(), [], threading.active_count()
    crew = VirtualCrew(clock)

    def work(n_tasks, name):
        left = list(range(n_tasks))

        def drain(go_on):
            while go_on() and left:
                left.pop()
                crew.spend(1)

        crew.run(drain, 100, 4)
        ended.append((name, clock.now()))

    clock.run([lambda: work(8, "alone")])
    assert ended.pop() == ("alone", 2)

    clock.run([lambda: work(8, "first"), lambda: (clock.sleep(0.5), work(3, "later"))])
    # The later one finds no thread free but its own, for which a helper of the first leaves.
    assert [name for name, _ in ended] == ["first", "later"]
    assert ended[0][1] == 2 + 3
    assert threading.active_count() <= n_threads
