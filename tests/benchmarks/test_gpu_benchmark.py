"""The GPU benchmark and the commands of docs/gpu.md, on the simulator and tiny arrays."""

import json

import numpy as np
import pytest
from helpers.simulated import gpu as simulated_gpu
from on_gpu import damage, proof, sanitize, soak

from benchmarks.arrays.workloads import Workload
from benchmarks.gpu import command, pool, saturation
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.stores import write
from benchmarks.runner.readers import AbsentError
from xarray_gpuzarr.backend import lazy_array
from xarray_gpuzarr.cuda.launch import all_kernels
from xarray_gpuzarr.decoders.cuda import CudaDecoder

TINY = "2e-4"
PEERS = {"zarr enable_gpu", "zarr enable_gpu, kvikio", "nvCOMP's Python classes", "CuPy: zarr enable_gpu"}
"""They need CuPy, so the simulator does without them."""


@pytest.fixture
def gpu(monkeypatch):
    return simulated_gpu.in_use(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "folder" / "gpu.json"


def run(gpu, out, *arguments):
    return main(["--scale", TINY, "--rounds", "1", "--out", str(out), *arguments], lambda: gpu)


def rows(out):
    """Return all rows of a file, each with its case."""
    cases = json.loads(out.read_text())["cases"]
    return [row | {"case": case["name"]} for case in cases for row in case["rows"]]


def test_every_case_runs(gpu, out, capsys):
    status = run(gpu, out)

    document = json.loads(out.read_text())
    without_time = {(row["reader"], row["status"]) for row in rows(out) if row["status"] != "measured"}
    assert without_time == {(name, "absent") for name in PEERS}
    assert all(min(row["wall_s"]) >= 0 for row in rows(out) if row["status"] == "measured")
    assert (status, document["finished"], document["gpu"]) == (0, True, {"name": "a simulator"})
    assert {"date", "machine", "revision", "settings", "versions"} <= set(document)
    printed = capsys.readouterr().out
    assert all(row["reader"] in printed for row in rows(out))


def test_other_values_are_a_failure(gpu, out, monkeypatch):
    monkeypatch.setattr(gpu, "same", lambda *_: False)

    assert run(gpu, out, "--only", "codec none") == 1
    failed = [row for row in rows(out) if row["status"] == "failed"]
    assert [row["reader"] for row in failed] == ["gpuzarr cuda", "gpuzarr, then upload"]
    assert all("other values" in row["note"] and not row["wall_s"] for row in failed)


def test_nothing_is_reported_of_reads_that_the_host_decoded(gpu, out, monkeypatch):
    monkeypatch.setattr(CudaDecoder, "_host_decodes", lambda *_: True)

    assert run(gpu, out, "--only", "codec lz4") == 1
    found = rows(out)
    assert {row["status"] for row in found} == {"failed"}
    assert all("the host decoded" in row["note"] and not row["wall_s"] for row in found)


pytestmark = pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated:RuntimeWarning")

LAYOUTS = {
    "runs": {"shape": (3 * 64,), "chunks": (16,), "shards": (64,), "field": "series", "dtype": "float32"},
    "boxes": {"shape": (15, 12, 20), "chunks": (4, 4, 10), "shards": (8, 4, 20), "field": "volume", "dtype": "uint16"},
    "packed": {"shape": (6, 9, 20), "chunks": (1, 5, 10), "shards": (2, 10, 20), "field": "era5", "dtype": "int16"},
}


@pytest.mark.parametrize(
    ("name", "codec"),
    [*(("boxes", c) for c in sanitize.CODECS if "snappy" not in c), ("runs", "zstd 3"), ("packed", "none")],
)
def test_shards_put_together_by_hand_are_what_zarr_reads(tmp_path, name, codec):
    workload = Workload(name=name, codec=codec, **LAYOUTS[name])

    values = open_array(write(workload, tmp_path))[...]

    np.testing.assert_array_equal(values, workload.values(), strict=True)
    assert len(np.unique(values)) > 1


def test_every_kernel_family_and_codec_is_sanitized(gpu, capsys):
    assert sanitize.main([], lambda: gpu) == 0
    assert set(gpu.launched) == {kernel.name for kernel in all_kernels()}
    assert gpu.api.calls["nvcomp"] > 0
    printed = capsys.readouterr().out
    assert all(f"{codec} (31, 2999): right" in printed for codec in [*sanitize.CODECS, *sanitize.FILTERS])
    gpu.api.check()


def test_a_wrong_read_is_reported_to_the_sanitizers_caller(gpu, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "CODECS", ["none", "zstd 3"])
    monkeypatch.setattr(lazy_array, "read_points", lambda stored, points, decoder, **_: gpu.put(np.zeros(500, "f4")))
    assert sanitize.main([], lambda: gpu) == 1
    assert "wrong values: none, zstd 3" in capsys.readouterr().out


def test_a_probe_for_the_sanitizer_launches_nothing(gpu, capsys):
    def no_gpu():
        raise AbsentError("no GPU to measure on: no driver")

    assert sanitize.main(["--probe"], lambda: gpu) == 0
    assert not gpu.launched
    assert sanitize.main(["--probe"], no_gpu) == 2
    assert capsys.readouterr().err == "no GPU to measure on: no driver\n"


def test_reads_beside_live_results_and_busy_consumers(gpu, out):
    assert pool.main(["--scale", TINY, "--rounds", "1", "--out", str(out)], lambda: gpu) == 0

    names = {(row["case"], row["reader"]) for row in rows(out)}
    beside = {(f"{share}% of memory live", "read") for share in (0, 30, 60)}
    parts = ("read", "then until idle")
    consumers = {("consumer", f"{consumer}: {part}") for consumer in pool.CONSUMERS for part in parts}
    assert names == beside | consumers
    assert {row["status"] for row in rows(out)} == {"measured"}


@pytest.mark.parametrize("only", [["codec lz4"], ["codec lz4", "codec gzip 5"]])
def test_chosen_cases_have_all_the_time_that_the_run_has(gpu, out, monkeypatch, only):
    given = []

    class Clocked(command.Session):
        def run(self, case, seconds):
            given.append(seconds)
            return super().run(case, seconds)

    monkeypatch.setattr(command, "Session", Clocked)

    run(gpu, out, "--seconds", "120", "--only", *only)

    assert (len(given), sum(given)) == (len(only), pytest.approx(120))


def test_a_soak_reads_random_arrays_rightly(gpu, out, capsys):
    assert soak.main(["--seconds", "0", "--scale", "2e-2", "--out", str(out)], lambda: gpu) == 0

    document = json.loads(out.read_text())
    assert (document["rounds"], document["failures"], len(document["at_rest"])) == (2, [], 2)
    assert document["reads"] >= 4
    assert "2 rounds" in capsys.readouterr().out


def test_a_wrong_value_ends_in_a_failure_that_can_be_made_again(gpu, out, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "same", lambda *_: False)
    assert soak.main(["--seconds", "0", "--seed", "7", "--scale", "2e-2", "--out", str(out)], lambda: gpu) == 1
    assert "--seed 7: " in capsys.readouterr().out


def test_every_step_runs_though_others_fail(tmp_path, capsys):
    ran = []

    def run(step, log):
        ran.append((step.target, log))
        return 124 if step.target == "soak-gpu" else 0

    assert proof.main(["--logs", str(tmp_path / "logs")], run) == 1

    assert ran == [(step.target, tmp_path / "logs" / f"{step.target}.log") for step in proof.STEPS]
    assert "soak-gpu       exit status 124" in capsys.readouterr().out
    assert sum(step.minutes for step in proof.STEPS) <= 35
    assert all(step.minutes * 60 < proof.MOST_SECONDS for step in proof.STEPS)


def test_nvcomp_alone_decodes_every_format(gpu, out, monkeypatch):
    for name, value in {"COUNTS": (2, 8), "STREAMS": (1, 4), "KILOBYTES": (1,), "_SECONDS": {1: 1.0}}.items():
        monkeypatch.setattr(saturation, name, value)

    assert saturation.main(["--rounds", "1", "--out", str(out)], lambda: gpu) == 0
    assert {row["status"] for row in rows(out)} == {"measured"}
    assert {row["case"] for row in rows(out)} == {f"{codec}, 1 kB" for codec in saturation.CODECS}


def test_nvcomp_says_what_it_makes_of_damage(gpu, monkeypatch, capsys):
    monkeypatch.setattr(damage, "find_gpu", lambda: gpu.api)

    assert damage.main(["nvcomp", "zstd", "noise"]) == 0
    found, right = json.loads(capsys.readouterr().out), [True, False, True]
    assert found == {"statuses": [0, 12, 0], "lengths": [65536, 0, 65536], "right": right, "goes on": True}
