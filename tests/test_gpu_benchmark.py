"""The GPU benchmark's own code, on the simulator and tiny arrays: what runs here needs no mending on a GPU."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.host_kernels import require_compiler

sys.path.append(str(Path(__file__).parents[1]))  # `pytest` alone does not look there, `python -m pytest` does

from helpers import simulated_gpu
from helpers.simulated_gpu import SimulatedGpu

from benchmarks.gpu import sanitize, stores
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.device import AbsentError
from benchmarks.gpu.measure import Case, Contestant, Ready, Session
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.results import Results, Row
from benchmarks.gpu.stages import WAITING, RecordedReads
from xarray_gpuzarr import lazy_array
from xarray_gpuzarr.cuda import resources
from xarray_gpuzarr.cuda.launch import all_kernels
from xarray_gpuzarr.read import stored_array

TINY = "2e-4"
PEERS = {"zarr-python, enable_gpu", "nvCOMP's Python classes"}
"""They need CuPy, so the simulator does without them."""


@pytest.fixture
def gpu(monkeypatch):
    require_compiler()
    gpu = SimulatedGpu()
    simulated_gpu.use(gpu, monkeypatch)
    monkeypatch.setattr(resources, "_options", resources.resource_options())
    return gpu


@pytest.fixture
def out(tmp_path):
    return tmp_path / "folder" / "gpu.json"


def run(gpu, out, *arguments):
    return main(["--scale", TINY, "--rounds", "1", "--out", str(out), *arguments], lambda: gpu)


def rows(out):
    return json.loads(out.read_text())["rows"]


def test_every_case_runs(gpu, out, capsys):
    status = run(gpu, out)

    document = json.loads(out.read_text())
    without_time = {(row["name"], row["status"]) for row in document["rows"] if row["status"] != "measured"}
    assert without_time <= {(name, "absent") for name in (*PEERS, "TensorStore, then upload")}
    assert {name for name, _ in without_time} >= PEERS
    assert all(min(row["seconds"]) >= 0 for row in document["rows"] if row["status"] == "measured")
    assert (status, document["finished"], document["gpu"]) == (0, True, {"name": "a simulator"})
    assert {"date", "machine", "revision", "settings", "versions"} <= set(document)
    printed = capsys.readouterr().out
    assert all(row["name"][:48] in printed for row in document["rows"])


def test_cases_are_chosen_by_parts_of_their_names(gpu, out):
    assert run(gpu, out, "--only", "kern") == 0
    assert {row["case"] for row in rows(out)} == {"kernels"}


def test_an_unknown_case_is_refused(gpu, out, capsys):
    assert run(gpu, out, "--only", "nonesuch") == 2
    assert "ERA5" in capsys.readouterr().err
    assert not out.exists()


def test_a_machine_without_a_gpu_is_told_so(out, capsys):
    def no_gpu():
        raise AbsentError("no GPU to measure on: none found")

    assert main(["--out", str(out)], no_gpu) == 2
    assert "none found" in capsys.readouterr().err


def test_other_values_are_a_failure(gpu, out, monkeypatch):
    monkeypatch.setattr(gpu, "same", lambda *_: False)

    assert run(gpu, out, "--only", "codec raw") == 1
    failed = [row for row in rows(out) if row["status"] == "failed"]
    assert [row["name"] for row in failed] == ["ours, read_array", "ours on the host, then upload"]
    assert all("other values" in row["note"] and not row["seconds"] for row in failed)


def test_what_there_is_no_time_for_is_listed(gpu, out):
    assert run(gpu, out, "--seconds", "0") == 0
    assert {row["status"] for row in rows(out)} == {"out of time"}
    assert len({row["case"] for row in rows(out)}) > 20


def test_a_run_that_is_killed_leaves_what_it_measured(gpu, out, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(stores, "_write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        run(gpu, out, "--only", "kernels", "codec raw")
    document = json.loads(out.read_text())
    assert not document["finished"]
    assert {row["status"] for row in document["rows"] if row["case"] == "kernels"} == {"measured"}


# ---- taking turns


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


def rows_of(out, found, *, n_rounds, case_seconds=60.0, seconds=60.0):
    results = Results({}, out)
    case = Case(name="case", summary="", seconds=1, contestants=lambda: found)
    Session(results, n_rounds=n_rounds, seconds=seconds).run(case, case_seconds)
    return {row.name: row for row in results.rows}


def test_contestants_take_turns_and_each_round_begins_with_another(out):
    calls = []
    found = rows_of(out, contestants(calls, a=[1.0], b=[2.0], c=[3.0, 4.0]), n_rounds=3)

    assert calls == [*"abcbcacab", "close a", "close b", "close c"]
    seconds = {name: row.seconds for name, row in found.items()}
    assert seconds == {"a": (1.0, 1.0, 1.0), "b": (2.0, 2.0, 2.0), "c": (3.0, 4.0, 4.0)}


def test_every_contestant_runs_once_when_the_case_is_out_of_time(out):
    calls = []
    rows_of(out, contestants(calls, a=[1.0], b=[2.0]), n_rounds=5, case_seconds=0.0)
    assert calls == ["a", "b", "close a", "close b"]


def test_when_all_time_is_over_what_was_measured_stays(out, monkeypatch):
    calls = []
    monkeypatch.setattr(Session, "_is_over", property(lambda _: len(calls) > 2))
    found = rows_of(out, contestants(calls, a=[1.0], b=[2.0]), n_rounds=5)

    assert calls == ["a", "b", "b", "close a", "close b"]
    assert {name: (row.status, row.seconds) for name, row in found.items()} == {
        "a": ("measured", (1.0,)),
        "b": ("measured", (2.0, 2.0)),
    }


def test_who_fails_later_keeps_its_times_and_has_no_more_turns(out):
    calls = []
    found = rows_of(out, contestants(calls, a=[1.0, ValueError("broke\n down")], b=[2.0]), n_rounds=4)

    assert calls == [*"abba", "b", "b", "close a", "close b"]
    assert (found["a"].status, found["a"].note, found["a"].seconds) == ("failed", "ValueError: broke down", (1.0,))


def test_times_by_label_become_rows(out):
    stages = Contestant(name="read", nbytes=10, prepare=lambda: Ready(measure=lambda: {"": 3.0, "host": 1.0}))
    found = rows_of(out, [stages], n_rounds=2)
    assert {name: row.seconds for name, row in found.items()} == {"read": (3.0, 3.0), "read: host": (1.0, 1.0)}


def test_rates_are_by_the_median_and_against_the_copy(out):
    results = Results({}, out)
    for seconds in (1.0, 9.0, 2.0):
        results.sample(
            Row(case="ceilings", name="device to device copy", nbytes=10**9, moved_nbytes=2 * 10**9), seconds
        )
    results.sample(Row(case="kernels", name="fill", nbytes=10**9, moved_nbytes=10**9), 4.0)

    cells = [line.split() for line in results.table().splitlines() if line]
    assert cells[1][-4:] == ["2000.000", "1000.000-9000.000", "0.50", "1.00"]
    assert cells[3][-4:] == ["4000.000", "4000.000-4000.000", "0.25", "0.25"]


# ---- what is read


LAYOUTS = {
    "runs": {"shape": (3 * 64,), "chunks": (16,), "shards": (64,), "field": "series", "dtype": "float32"},
    "boxes": {"shape": (15, 12, 20), "chunks": (4, 4, 10), "shards": (8, 4, 20), "field": "volume", "dtype": "uint16"},
    "packed": {"shape": (6, 9, 20), "chunks": (1, 5, 10), "shards": (2, 10, 20), "field": "era5", "dtype": "int16"},
}


KNOWN_TO_ZARR = [codec for codec in stores.CODECS if "snappy" not in codec]


@pytest.mark.parametrize(
    ("name", "codec"), [*(("boxes", c) for c in KNOWN_TO_ZARR), ("runs", "zstd"), ("packed", "raw")]
)
def test_shards_put_together_by_hand_are_what_zarr_reads(tmp_path, name, codec):
    stored = stores.write(stores.Layout(name=name, codec=codec, **LAYOUTS[name]), tmp_path)

    values = open_array(stored)[...]

    np.testing.assert_array_equal(values, stored.values(), strict=True)
    assert len(np.unique(values)) > 1


def test_shards_that_cut_chunks_are_refused():
    with pytest.raises(ValueError, match="chunks of 16 in shards of 40"):
        stores.Layout(name="cut", codec="raw", **(LAYOUTS["runs"] | {"shards": (40,)}))


def test_stages_add_up_to_the_whole_read(gpu, tmp_path):
    stored = stores.write(stores.Layout(name="boxes", codec="blosc zstd shuffle", **LAYOUTS["boxes"]), tmp_path)
    reads = RecordedReads(gpu, stored_array(open_array(stored)), ..., with_marks=True)

    np.testing.assert_array_equal(reads.run().get(), stored.values())
    found = reads.stages()

    host = {label: seconds for label, seconds in found.items() if label.startswith("host, ")}
    assert sum(host.values()) == pytest.approx(found[""], rel=0.05, abs=1e-3)
    assert {f"host, {label}" for label in (*WAITING, "check", "transfer", "tables", "decode", "place")} <= set(host)
    assert {"device, transfer", "device, place", "device, nvCOMP zstd", "device, receipt"} <= set(found)


# ---- what is run under compute-sanitizer


def test_every_kernel_family_and_codec_is_sanitized(gpu, capsys):
    assert sanitize.main(lambda: gpu) == 0
    assert set(gpu.launched) == {kernel.name for kernel in all_kernels()}
    assert gpu.api.calls["nvcomp"] > 0
    printed = capsys.readouterr().out
    assert all(f"{codec} (31, 2999): right" in printed for codec in stores.CODECS)
    gpu.api.check()


def test_a_wrong_read_is_reported_to_the_sanitizers_caller(gpu, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "CODECS", ["raw", "zstd"])
    monkeypatch.setattr(lazy_array, "read_points", lambda stored, points, decoder: gpu.put(np.zeros(500, "f4")))
    assert sanitize.main(lambda: gpu) == 1
    assert "wrong values: raw, zstd" in capsys.readouterr().out
