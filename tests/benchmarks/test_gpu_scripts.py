"""The commands of docs/gpu-proof.md on the simulator: each runs to its end, and says so when something is wrong."""

import json
import sys
from pathlib import Path

import pytest
from helpers.simulated import gpu as simulated_gpu

from benchmarks.gpu import damage, proof, saturation, soak
from benchmarks.gpu.soak import Found


@pytest.fixture
def gpu(monkeypatch):
    return simulated_gpu.in_use(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "folder" / "results.json"


def rows(out):
    cases = json.loads(out.read_text())["cases"]
    return {(case["name"], row["reader"]): row for case in cases for row in case["rows"]}


# ---- what nvCOMP alone decodes


def test_nvcomp_says_what_it_makes_of_damage(gpu, monkeypatch, capsys):
    monkeypatch.setattr(damage, "current_device", lambda: gpu.api)
    assert damage.main(["nvcomp", "zstd", "noise"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "statuses": [0, 12, 0],
        "lengths": [65536, 0, 65536],
        "right": [True, False, True],
        "goes on": True,
    }


SMALL = {"COUNTS": (2, 8), "STREAMS": (1, 4), "KILOBYTES": (1, 2)}


@pytest.fixture
def few_sizes(monkeypatch):
    for name, value in (SMALL | {"_SECONDS": {1: 1.0, 2: 1.0}}).items():
        monkeypatch.setattr(saturation, name, value)


def test_nvcomp_alone_decodes_every_format_on_every_number_of_streams(gpu, out, few_sizes, capsys):
    assert saturation.main(["--rounds", "2", "--out", str(out)], lambda: gpu) == 0

    found = rows(out)
    cases = [f"{codec}, {n} kB" for codec in saturation.CODECS for n in (1, 2)]
    assert list(found) == [(case, f"{n} chunks on {k}") for case in cases for n, k in ((2, 1), (8, 1), (8, 4))]
    assert all(row["status"] == "measured" and len(row["wall_s"]) == 2 for row in found.values())
    assert found["lz4, 2 kB", "8 chunks on 4"]["nbytes"] == 8 * 2000
    printed = capsys.readouterr().out
    assert "| GB/s (streams) | the fewest, ms | 2 chunks | 8 chunks |" in printed
    assert all(f"| {case} |" in printed for case in cases)


# ---- the soak


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


@pytest.mark.parametrize(
    ("at_rest", "growth"),
    [
        ([], (0, 0)),
        ([(0.1, 5, 50), (0.3, 9, 70), (0.6, 7, 75), (1.0, 8, 60)], (-1, 5)),
        ([(0.1, 5, 50)], (0, 0)),
    ],
)
def test_growth_is_what_came_after_the_first_part(at_rest, growth):
    assert Found(at_rest=at_rest).growth() == growth


# ---- all of them


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


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("print('done')", 0, "done\n"),
        ("print('bad'); raise SystemExit(3)", 3, "bad\n"),
        ("import time; print('on', flush=True); time.sleep(60)", 124, "on\n"),
    ],
)
def test_a_step_ends_with_its_time_and_leaves_a_log(tmp_path, monkeypatch, program, status, said):
    popen = proof.subprocess.Popen
    monkeypatch.setattr(proof.subprocess, "Popen", lambda _, **k: popen([sys.executable, "-c", program], **k))
    monkeypatch.setattr(proof, "MOST_SECONDS", 2)
    log = tmp_path / "step.log"
    assert proof.run_step(proof.STEPS[0], log) == status
    assert log.read_text() == said


def test_every_step_is_a_target_and_stands_on_the_page():
    root = Path(__file__).parents[2]
    makefile, page = (root / "gpu.mk").read_text(), (root / "docs" / "gpu-proof.md").read_text()
    for step in proof.STEPS:
        assert f"\n{step.target}: " in makefile
        assert f"`make {step.target}` | {step.minutes:g} |" in page
