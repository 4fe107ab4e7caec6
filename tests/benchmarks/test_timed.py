"""The benchmark on a modelled device with a clock."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks.page import measurements
from benchmarks.page.runs import load
from benchmarks.timed.__main__ import main
from benchmarks.timed.simulation import Simulation, Stream
from xarray_gpuzarr.decoders.cuda.staging import pinned


class StillClock:
    """Time that passes where it is told to."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


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


PROGRAMS = {
    "a stream runs in order": ([(0, "decode", 2, 0), (0, "decode", 3, 0)], [2, 5]),
    "streams share the slots": ([(n, "decode", 2, 0) for n in range(4)], [2, 2, 2, 4]),
    "a copy waits for its turn": ([(0, "upload", 2, 0), (1, "upload", 3, 1)], [2, 5]),
    "an event holds a stream": ([(0, "upload", 4, 0), (1, "decode", 1, 0, 0), (1, "decode", 1, 0)], [4, 5, 6]),
    "of those reached together, the first given is": (
        [(0, "decode", 2, 0), (1, "decode", 2, 0), (0, "upload", 3, 0), (1, "upload", 1, 0)],
        [2, 2, 5, 6],
    ),
    "first reached is first served": (
        [(0, "upload", 4, 0), (1, "decode", 9, 0), (0, "upload", 1, 0), (2, "upload", 2, 1)],
        [4, 9, 7, 6],
    ),
}
"""Stream, resource, seconds, seconds after the one before, and the number of an awaited operation; and their ends."""


@pytest.mark.parametrize(("program", "ends"), PROGRAMS.values(), ids=PROGRAMS)
def test_operations_end_as_streams_events_and_slots_have_it(program, ends):
    clock, operations = StillClock(), []
    simulation = Simulation({"upload": 1, "decode": 3}, clock)
    streams = [Stream(handle) for handle in range(4)]

    for stream, resource, seconds, later, *awaited in program:
        clock.time += later
        for number in awaited:
            simulation.hold(streams[stream], operations[number])
        operations.append(simulation.enqueue(streams[stream], resource, 1, float(seconds)))

    for operation in operations:
        simulation.wait_for(operation)
    assert [operation.end_s for operation in operations] == ends
