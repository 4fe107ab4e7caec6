"""How contestants take turns, what becomes of those that fail, and what rows, tables and files say of them."""

import io
import json

import pytest
from rich.console import Console

from benchmarks.report import geometric_mean, print_case, speedups
from benchmarks.runner.results import CaseRows, Peak, Results, Row, Sample
from benchmarks.runner.session import Case, Contestant, Ready, Session


def contestants(calls, **seconds):
    """Return contestants that note their calls and say that they took so many seconds, or raise."""

    def measure(name):
        calls.append(name)
        said = seconds[name][min(calls.count(name), len(seconds[name])) - 1]
        if isinstance(said, Exception):
            raise said
        return said

    def prepare(name):
        return Ready(measure=lambda: measure(name), close=lambda: calls.append(f"close {name}"))

    return [Contestant(name=name, nbytes=10, prepare=lambda name=name: prepare(name)) for name in seconds]


def run(found, *, n_rounds=1, case_seconds=60.0, seconds=60.0, out=None, **of_case):
    """Return the rows of one case, by name."""
    results = Results({"date": "today"}, out)
    case = Case(name="case", summary="all of it", contestants=lambda: found, **of_case)
    rows = Session(results, n_rounds=n_rounds, seconds=seconds).run(case, case_seconds).rows
    return {row.name: row for row in rows}


def walls(rows):
    return {name: tuple(sample.wall_s for sample in row.samples) for name, row in rows.items()}


def test_contestants_take_turns_and_each_round_begins_with_another():
    found = run(contestants(calls := [], a=[1.0], b=[2.0], c=[3.0, 4.0]), n_rounds=3)

    assert calls == [*"abcbcacab", "close a", "close b", "close c"]
    assert walls(found) == {"a": (1.0, 1.0, 1.0), "b": (2.0, 2.0, 2.0), "c": (3.0, 4.0, 4.0)}


def test_what_a_file_says_is_what_was_measured(tmp_path):
    out = tmp_path / "folder" / "results.json"
    ready = Ready(measure=lambda: Sample(wall_s=2.0, cpu_s=3.0), facts={"copies": 1})
    first = Contestant(name="a", side="peer", nbytes=4 * 10**9, moved_nbytes=5, prepare=lambda: ready)
    others = contestants(calls := [], b=[1.0, ValueError("broke\n down")])

    found = run([first, *others], n_rounds=4, out=out, about=lambda: {"operation": "read", "nbytes": 10})

    document = json.loads(out.read_text())
    (case,) = document["cases"]
    assert (document["date"], document["finished"], case["operation"]) == ("today", False, "read")
    assert (case["rows"][0]["median_s"], case["rows"][0]["GB_per_s"]) == (2.0, 2.0)
    assert [Row.from_json("case", row) for row in case["rows"]] == list(found.values())
    assert (found["b"].status, found["b"].note) == ("failed", "ValueError: broke down")
    assert (calls, walls(found)) == (["b", "b", "close b"], {"a": (2.0,) * 4, "b": (1.0,)})


def row(name, side, *seconds, case="case", **more):
    samples = tuple(Sample(wall_s=s, cpu_s=2 * s) for s in seconds)
    return Row(case=case, name=name, side=side, status="measured", samples=samples, nbytes=10**9, **more)


def printed(case, **keywords):
    """Return the cells of a printed table by reader, and all lines."""
    console = Console(width=200, file=io.StringIO())
    print_case(case, console, **keywords)
    lines = console.file.getvalue().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows}, lines


def test_a_table_compares_with_the_best_peer_and_with_the_slowest_bare_row():
    case = CaseRows(
        name="case",
        summary="what",
        about={"nbytes": 10**9, "stored_nbytes": 5 * 10**8},
        rows=[
            row("a", "peer", 4.0, peak=Peak(peak_nbytes=3 * 10**6, result_nbytes=10**6)),
            row("b", "peer", 2.0),
            row("ours", "ours", 1.0, 9.0, 1.5),
            row("upload", "bare", 0.5),
            row("decode", "bare", 0.75),
            Row(case="case", name="gone", side="peer", status="absent", note="not installed"),
            Row(case="case", name="bad", side="peer", status="failed", note="wrong"),
        ],
    )

    cells, lines = printed(case)

    assert lines[0] == "case: what; 1000.0 MB, ratio 2.0"
    assert cells["reader"] == ["ms", "min to max", "GB/s", "CPU ms", "extra MB", "/ best peer", "/ bare", ""]
    assert cells["a"] == ["4000", "4000 to 4000", "0.25", "8000", "2.0", "2.00", "5.33", ""]
    assert cells["ours"] == ["1500", "1000 to 9000", "0.67", "3000", "", "0.75", "2.00", ""]
    assert cells["decode"][-2] == "1.00"
    assert cells["gone"][-1] == "absent: not installed"
    assert cells["bad"][-1] == "failed: wrong"


def test_speedups_are_over_the_best_peer_that_did_not_fail():
    failed = row("wrong", "peer", 0.1).ended("failed", "other values")
    cases = [
        CaseRows(name="one", rows=[failed, row("a", "peer", 6.0), row("b", "peer", 3.0), row("ours", "ours", 1.5)]),
        CaseRows(name="two", rows=[row("a", "peer", 1.0), row("ours", "ours", 2.0)]),
        CaseRows(name="none", rows=[row("ours", "ours", 2.0)]),
    ]
    assert speedups(cases) == {"ours": {"one": 2.0, "two": 0.5}}
    assert geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
