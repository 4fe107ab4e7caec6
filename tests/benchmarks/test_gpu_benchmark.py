"""The GPU benchmarks and the commands of docs/gpu.md run, on the simulator and tiny arrays, and say what failed."""

import json

import numpy as np
import pytest
from helpers.simulated.in_use import in_use
from on_gpu import damage, proof, soak

from benchmarks.gpu import __main__ as reads
from benchmarks.gpu import pool, sanitize, saturation
from xarray_gpuzarr.backend import lazy_array
from xarray_gpuzarr.cuda.launch import all_kernels
from xarray_gpuzarr.decoders.cuda import CudaDecoder

SMALL = ("--scale", "2e-4", "--rounds", "1")
PEERS = {"zarr enable_gpu", "zarr enable_gpu, kvikio", "nvCOMP's Python classes", "CuPy: zarr enable_gpu"}
"""They need CuPy, so the simulator does without them."""


@pytest.fixture
def gpu(monkeypatch):
    for name, value in {"COUNTS": (2, 8), "STREAMS": (1, 4), "KILOBYTES": (1,), "_SECONDS": {1: 1.0}}.items():
        monkeypatch.setattr(saturation, name, value)
    return in_use(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "folder" / "gpu.json"


def rows(out):
    return [row for case in json.loads(out.read_text())["cases"] for row in case["rows"]]


@pytest.mark.parametrize(
    ("command", "arguments", "absent"),
    [(reads, SMALL, PEERS), (pool, SMALL, set()), (saturation, ("--rounds", "1"), set())],
    ids=["reads", "pool", "saturation"],
)
def test_every_case_runs(gpu, out, capsys, command, arguments, absent):
    assert command.main([*arguments, "--out", str(out)], lambda: gpu) == 0

    without_time = {(row["reader"], row["status"]) for row in rows(out) if row["status"] != "measured"}
    assert without_time == {(name, "absent") for name in absent}
    document = json.loads(out.read_text())
    assert (document["finished"], document["gpu"]) == (True, {"name": "a simulator"})


FAULTS = {
    "other values than": lambda patch, gpu: patch.setattr(gpu, "same", lambda *_: False),
    "the host decoded": lambda patch, _: patch.setattr(CudaDecoder, "_host_decodes", lambda *_: True),
}


@pytest.mark.parametrize("said", FAULTS)
def test_no_time_is_reported_of_reads_that_are_wrong_or_the_hosts(gpu, out, monkeypatch, said):
    FAULTS[said](monkeypatch, gpu)

    assert reads.main([*SMALL, "--out", str(out), "--only", "codec lz4"], lambda: gpu) == 1

    failed = [row for row in rows(out) if row["status"] == "failed"]
    assert {"gpuzarr cuda", "gpuzarr, then upload"} <= {row["reader"] for row in failed}
    assert all(said in row["note"] and not row["wall_s"] for row in failed)


def test_every_kernel_family_and_codec_is_sanitized(gpu, capsys):
    assert sanitize.main([], lambda: gpu) == 0

    assert set(gpu.launched) == {kernel.name for kernel in all_kernels()}
    assert gpu.api.calls["nvcomp"] > 0
    printed = capsys.readouterr().out
    assert all(f"{codec} (31, 2999): right" in printed for codec in [*sanitize.CODECS, *sanitize.FILTERS])
    gpu.api.check()


def test_a_wrong_read_is_reported_to_the_sanitizers_caller(gpu, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "CODECS", ["none"])
    monkeypatch.setattr(lazy_array, "read_points", lambda stored, points, decoder, **_: gpu.put(np.zeros(500, "f4")))

    assert sanitize.main([], lambda: gpu) == 1
    assert "wrong values: none" in capsys.readouterr().out


@pytest.mark.parametrize("is_right", [True, False])
def test_a_soak_says_whether_random_arrays_are_read_rightly(gpu, out, monkeypatch, capsys, is_right):
    if not is_right:
        monkeypatch.setattr(gpu, "same", lambda *_: False)

    status = soak.main(["--seconds", "0", "--seed", "7", "--scale", "2e-2", "--out", str(out)], lambda: gpu)

    assert status == (not is_right)
    assert (json.loads(out.read_text())["failures"] == []) == is_right
    assert ("--seed 7: " in capsys.readouterr().out) != is_right


def test_every_step_of_the_proof_runs_though_others_fail(tmp_path, capsys):
    ran = []

    def run(step, log):
        ran.append(step)
        return 124 if step.target == "soak-gpu" else 0

    assert proof.main(["--logs", str(tmp_path / "logs")], run) == 1
    assert ran == [*proof.STEPS]
    assert "soak-gpu       exit status 124" in capsys.readouterr().out


def test_nvcomp_says_what_it_makes_of_damage(gpu, monkeypatch, capsys):
    monkeypatch.setattr(damage, "find_gpu", lambda: gpu.api)

    assert damage.main(["nvcomp", "zstd", "noise"]) == 0
    said = {"statuses": [0, 12, 0], "lengths": [65536, 0, 65536], "right": [True, False, True], "goes on": True}
    assert json.loads(capsys.readouterr().out) == said


def test_a_process_that_asks_about_damage_gets_as_far_as_the_gpu():
    said = damage.ended_or_said("read", "zstd", "none")

    assert said.get("goes on") or "xarray_gpuzarr.errors." in said["ended"], said
