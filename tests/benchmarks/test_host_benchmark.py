"""Readers on the host: what becomes of other values and failures, and of cases that are chosen."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.codec_pipeline import settings_taken_back
from helpers.here_and_now import HereAndNow

from benchmarks import __main__ as command
from benchmarks.__main__ import main
from benchmarks.arrays.workloads import SERIES, SHARDED_VOLUME
from benchmarks.host import cases as host_cases
from benchmarks.host import child
from benchmarks.host.cases import HostCase, SharedStore
from benchmarks.host.readers import Reader
from benchmarks.host.task import Opened
from benchmarks.page.runs import load
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.readers import AbsentError
from benchmarks.runner.results import Results
from benchmarks.runner.session import Session

pytestmark = pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated:RuntimeWarning")

LAYOUTS = {
    "runs": replace(SERIES, name="runs", shape=(600,), chunks=(50,), shards=(200,)),
    "boxes": replace(SHARDED_VOLUME, name="boxes", shape=(15, 12, 20), chunks=(4, 4, 10), shards=(8, 4, 20)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def here(monkeypatch):
    """Readers answer in this process."""
    monkeypatch.setattr("benchmarks.runner.crew.process", HereAndNow)
    monkeypatch.setattr(command, "published", lambda **_: [LAYOUTS["runs"]])
    monkeypatch.setattr(command, "MORE_CASES", ())
    monkeypatch.setattr(command, "WORKLOADS", [replace(LAYOUTS["boxes"], operations=("read", "chunks"))])
    with settings_taken_back():
        yield


def fake(name, side, values):
    """Return a reader of whatever `values` returns."""
    return Reader(name=name, side=side, operations=("read",), open=lambda _: Opened(run=values))


def rows_of(case, folder, readers, monkeypatch, *, with_memory=False):
    by_name = {reader.name: reader for reader in readers}
    for module in (host_cases, child):
        monkeypatch.setattr(module, "READERS", by_name)
    shared = SharedStore(case, ReaderProcesses(), folder, with_memory=with_memory)
    measured = host_cases.Case(name=case.name, summary="", contestants=shared.contestants, about=shared.about)
    return Session(Results({}, None), n_rounds=1).run(measured)


def test_other_values_and_failures_are_rows(folder, here, monkeypatch):
    def broken():
        raise OSError("gone")

    def elsewhere():
        raise AbsentError("local folders only")

    zeros = np.zeros(3)
    found = rows_of(
        HostCase(workload=LAYOUTS["runs"], operation="read"),
        folder,
        [
            fake("first", "peer", lambda: zeros),
            fake("other", "ours", lambda: zeros + 1),
            fake("nan", "ours", lambda: np.where(zeros == 0, np.nan, 0)),
            fake("broken", "peer", broken),
            fake("remote", "peer", elsewhere),
        ],
        monkeypatch,
    )

    said = {row.name: (row.status, row.note.partition(":")[0]) for row in found.rows}
    assert said == {
        "first": ("measured", ""),
        "other": ("failed", "other values than first"),
        "nan": ("failed", "other values than first"),
        "broken": ("failed", "OSError"),
        "remote": ("absent", "local folders only"),
    }
    assert found.about["stored_nbytes"] > 0
    assert found.about["workload"]["name"] == "runs"


def test_memory_is_what_a_read_allocates_beyond_its_result(folder, here, monkeypatch):
    def read():
        scratch = np.ones(3_000_000, np.uint8)
        return np.full(1_000_000, scratch[-1])

    case = HostCase(workload=LAYOUTS["runs"], operation="read")
    found = rows_of(case, folder, [fake("reader", "ours", read)], monkeypatch, with_memory=True)

    peak = found.rows[0].peak
    assert peak.result_nbytes == 1_000_000
    assert 3_000_000 <= peak.extra_nbytes < 3_100_000


def test_the_command_runs_chosen_cases_and_writes_them(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GPUZARR_BENCH_DIR", str(tmp_path / "stores"))
    out = tmp_path / "results.json"

    assert main(["--rounds", "1", "--no-memory", "--out", str(out), "--only", "chunks x4", "runs"]) == 0

    names = [case.name for case in load(out).cases]
    assert names == ["boxes/chunks x4", "runs/read"]
    assert "best peer / ours" in capsys.readouterr().out
