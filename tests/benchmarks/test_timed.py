"""The benchmark on a modelled device with a clock."""

import heapq
import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.page import measurements
from benchmarks.page.runs import load
from benchmarks.timed.__main__ import main
from benchmarks.timed.simulation import Simulation, Stream
from xarray_gpuzarr.decoders.cuda.staging import pinned


class StillClock:
    """Time that passes where it is told to."""

    def __init__(self):
        self.time = 0.0
        self.slept = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    def spin(self, until_s):
        self.time = max(self.time, until_s)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a call of the command on short arrays that returns what it has written."""
    monkeypatch.setattr(pinned, "decode_chunks", lambda *_: pytest.fail("the host decodes"))

    def run(*arguments):
        out = tmp_path / "timed.json"
        assert main(["--smoke", "--threads", "1", "2", "--out", str(out), *arguments]) == 0
        return json.loads(out.read_text())

    return run


def test_command_reads_every_array_and_the_page_has_it(command, tmp_path, capsys):
    document = command()

    assert document["finished"]
    assert document["modelled"]
    arrays = {
        **dict.fromkeys(("published", "64 kB chunks", "4 MB chunks"), 528),
        "raw": 0,
        "small shards": 528,
        **dict.fromkeys(("published, lz4", "64 kB chunks, lz4"), 4224),
        "published, gzip": 528,
    }
    assert [case["name"] for case in document["cases"]] == [
        f"timed/{name}, calls overlap, {n_slots} slots" for name, n_slots in arrays.items()
    ]
    for case in document["cases"]:
        assert [row["reader"] for row in case["rows"] if row["side"] == "ours"] == ["no dask", "1 thread", "2 threads"]
    timed = load(tmp_path / "timed.json")
    text = measurements.page({"host": replace(timed, cases=[]), "timed": timed})
    assert "no number below comes from a GPU" in text
    line = r"\| small shards, calls overlap, 528 slots \| 2 threads \| .+ GB/s \| \d+% \|"
    assert re.search(line, text)
    assert re.search(line, capsys.readouterr().out)


def test_bounds_are_those_of_what_was_asked_for(command):
    cases = command("--case", "published", "raw", "--calls", "overlap", "in-turn", "--slots", "1", "4")["cases"]
    bounds = {(c["name"], r["reader"]): r["median_s"] for c in cases for r in c["rows"] if r["side"] == "bare"}

    for calls in ("overlap", "in turn"):
        # 16 chunks of 30 ms: all on one slot, or on four.
        assert bounds[f"timed/published, calls {calls}, 1 slots", "decoder"] == pytest.approx(16 * 0.030)
        assert bounds[f"timed/published, calls {calls}, 4 slots", "decoder"] == pytest.approx(4 * 0.030)
        raw = f"timed/raw, calls {calls}, 4 slots"
        assert bounds[raw, "decoder"] == 0
        assert bounds[raw, "copy engine"] > 16 * 1_024_000 / 50e9
        assert bounds[raw, "fetch"] > 16 * 1_024_000 / 5.7e9 / 16
    for case in cases:
        slowest = max(r["median_s"] for r in case["rows"] if r["side"] == "bare")
        assert all(r["median_s"] >= slowest for r in case["rows"] if r["side"] == "ours")


HANDLES = itertools.count(1)


programs = st.lists(
    st.tuples(
        st.integers(0, 2),  # stream
        st.sampled_from(["upload", "decode"]),
        st.integers(1, 6),  # parts
        st.integers(1, 8),  # seconds
        st.integers(0, 5),  # later than the one before
        st.integers(-1, 10),  # awaited operation, by its number
    ),
    max_size=14,
)
N_SLOTS = {"upload": 1, "decode": 3}


def ends_by_brute_force(program):
    """Return when operations end: the one that is reached first is served next, found by looking at all of them."""
    enqueued, at = [], 0.0
    for number, (stream, resource, n, seconds, later, awaited) in enumerate(program):
        at += later
        before = [i for i in range(number) if program[i][0] == stream][-1:]
        enqueued.append((at, [*before, *([awaited] if 0 <= awaited < number else [])], resource, n, seconds))
    free = {resource: [0.0] * n for resource, n in N_SLOTS.items()}
    ends = {}
    while len(ends) < len(program):
        ready = [
            (max([at, *(ends[i] for i in before)]), number)
            for number, (at, before, *_) in enumerate(enqueued)
            if number not in ends and all(i in ends for i in before)
        ]
        reached, number = min(ready)
        _, _, resource, n, seconds = enqueued[number]
        last = reached
        for _ in range(n):
            start = max(heapq.heappop(free[resource]), reached)
            heapq.heappush(free[resource], start + seconds)
            last = max(last, start + seconds)
        ends[number] = last
    return [ends[number] for number in range(len(program))]


@given(programs)
@settings(deadline=None)
def test_streams_and_events_are_honoured_as_by_brute_force(program):
    clock = StillClock()
    simulation = Simulation(N_SLOTS, clock)
    streams = [Stream(next(HANDLES)) for _ in range(3)]
    operations = []

    for stream, resource, n, seconds, later, awaited in program:
        clock.time += later
        if 0 <= awaited < len(operations):
            simulation.hold(streams[stream], operations[awaited])
        operations.append(simulation.enqueue(streams[stream], resource, n, float(seconds)))

    for operation in operations:
        simulation.wait_for(operation)
    assert [operation.end_s for operation in operations] == ends_by_brute_force(program)
