"""The commands of docs/gpu-proof.md on the simulator: each runs to its end, and says so when something is wrong."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

sys.path.append(str(Path(__file__).parents[1]))  # `pytest` alone does not look there, `python -m pytest` does

from helpers import simulated_gpu

from benchmarks.gpu import ceilings, check_auto, facts, faults, proof, soak, sweep, tune
from benchmarks.gpu.calibrate import calibration_of, rising
from benchmarks.gpu.soak import Found
from benchmarks.measure import AbsentError
from benchmarks.results import CaseRows, Results, Row, Sample
from xarray_gpuzarr.decoders.calibration import as_document, read_calibration

TINY = ["--scale", "2e-4", "--rounds", "1"]


@pytest.fixture
def gpu(monkeypatch):
    return simulated_gpu.in_use(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "folder" / "results.json"


def rows(out):
    cases = json.loads(out.read_text())["cases"]
    return {(case["name"], row["reader"]): row for case in cases for row in case["rows"]}


@pytest.mark.parametrize("script", [facts, soak, tune, check_auto, faults])
def test_a_machine_without_a_gpu_is_told_so(script, tmp_path, capsys):
    def no_gpu():
        raise AbsentError("no GPU to measure on: none found")

    calibration = tmp_path / "c.json"
    calibration.write_text(json.dumps(CALIBRATION))
    arguments = [str(calibration)] if script is check_auto else []
    assert script.main([*arguments, "--out", str(tmp_path / "o.json")], no_gpu) == 2
    assert "none found" in capsys.readouterr().err


# ---- facts


def test_every_question_has_an_answer(gpu, out, capsys):
    assert facts.main([*TINY, "--out", str(out)], lambda: gpu) == 0

    found = rows(out)
    assert {row["status"] for row in found.values()} == {"measured"}
    assert {case for case, _ in found} == {"machine", "copies", "alignment", "zstd frames", "scratch", "allocation"}
    assert found["scratch", "zstd"]["facts"]["more than the formula"] == "none"
    assert ("alignment", "deflate, offset 1") not in found  # nvCOMP says that it does not take them
    assert "zstd, offset 7: decoded rightly" in capsys.readouterr().out


def test_wrong_answers_are_failures(gpu, out, monkeypatch):
    monkeypatch.setattr(ceilings.Resident, "content", lambda *_: b"other")
    assert facts.main([*TINY, "--only", "alignment", "--out", str(out)], lambda: gpu) == 1
    assert {row["status"] for row in rows(out).values()} == {"failed"}


# ---- faults


def child_of(gpu):
    """Return what answers as a process of its own would."""

    def child(arguments):
        _, what, codec, damage = arguments
        return json.dumps(faults.ASK[what](gpu, codec, damage))

    return child


@pytest.fixture
def one_child(monkeypatch):
    """Children of one process take turns."""
    monkeypatch.setattr(faults, "_AT_ONCE", 1)


def test_no_damage_gives_wrong_values_or_ends_the_process(gpu, one_child, out, monkeypatch):
    monkeypatch.setattr(faults, "NATIVE_CODECS", ("zstd 3", "snappy"))
    monkeypatch.setattr(faults, "CODECS", ("gzip 5", "lz4", "blosc blosclz 5 shuffle"))

    assert faults.main(["--out", str(out)], lambda: gpu, child_of(gpu)) == 0

    found = rows(out)
    assert {row["status"] for row in found.values()} == {"measured"}
    assert found["a read", "lz4, none"]["facts"]["said"] == "right values"
    assert found["a read", "lz4, noise"]["facts"]["said"].startswith("CorruptChunkError: cannot decode chunk (1,)")
    assert found["a read", "blosc blosclz 5 shuffle, flipped"]["facts"]["said"] == "values as the host decodes them"
    assert found["nvCOMP alone", "snappy, none"]["facts"]["right"] == "[true, true, true]"
    assert found["nvCOMP alone", "zstd 3, noise"]["facts"]["statuses"] == "[0, 12, 0]"


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ({"said": "WRONG VALUES", "goes on": True}, "WRONG VALUES; goes on: True"),
        ({"said": "CorruptChunkError: x", "goes on": False}, "goes on: False"),
        ({"said": "CorruptChunkError: x", "goes on": True}, "CorruptChunkError: x"),  # where nothing is damaged
    ],
)
def test_a_read_that_goes_wrong_is_a_failure(gpu, one_child, out, monkeypatch, said, note):
    monkeypatch.setattr(faults, "CODECS", ("lz4",))
    monkeypatch.setattr(faults, "DAMAGES", ("none",))
    status = faults.main(["--out", str(out), "--only", "a read"], lambda: gpu, lambda _: json.dumps(said))
    assert status == 1
    assert note in rows(out)["a read", "lz4, none"]["note"]


def test_a_lost_process_is_an_answer_of_nvcomp_and_a_failure_of_a_read(gpu, out, monkeypatch):
    def lost(_):
        raise RuntimeError("exit status -6: an illegal memory access")

    for name in ("CODECS", "NATIVE_CODECS"):
        monkeypatch.setattr(faults, name, ("lz4",))
    monkeypatch.setattr(faults, "DAMAGES", ("noise",))

    assert faults.main(["--out", str(out)], lambda: gpu, lost) == 1

    found = rows(out)
    assert "exit status -6" in found["nvCOMP alone", "lz4, noise"]["facts"]["ended"]
    assert found["a read", "lz4, noise"]["status"] == "failed"


def test_a_child_answers_one_question(gpu, capsys):
    assert faults.main(["--child", "nvcomp", "lz4", "truncated"], lambda: gpu) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["statuses"], answer["goes on"]) == ([0, 12, 0], True)


def test_children_are_processes_whose_last_words_are_kept():
    assert "--child WHAT CODEC DAMAGE" in faults.run_child(["--help"])
    with pytest.raises(RuntimeError, match=r"(?s)exit status 2: .*unrecognized arguments: --nonsense"):
        faults.run_child(["--nonsense"])


@pytest.mark.parametrize("damage", faults.DAMAGES)
def test_damage_is_the_same_every_time(damage):
    stream = bytes(range(256))
    assert faults.damaged(stream, damage) == faults.damaged(stream, damage)
    assert (faults.damaged(stream, damage) == stream) == (damage == "none")


def test_unknown_damage_is_refused():
    with pytest.raises(ValueError, match="no damage is called 'mild'"):
        faults.damaged(b"x", "mild")


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


def test_an_error_of_a_read_is_a_finding(gpu, out, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("lost")

    monkeypatch.setattr(soak, "read_array", broken)
    assert soak.main(["--seconds", "0", "--scale", "2e-2", "--out", str(out)], lambda: gpu) == 1
    assert all("RuntimeError: lost" in said for said in json.loads(out.read_text())["failures"])


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


def test_growing_memory_is_a_failure():
    more = soak._GROWTH_NBYTES + 1
    assert Found(at_rest=[(0.1, 0, 0), (0.9, more - 1, 0)]).is_flat
    assert not Found(at_rest=[(0.1, 0, 0), (0.9, 0, more)]).is_flat


@given(seed=st.integers(0, 10**6))
def test_selections_are_numpys(seed):
    rng = np.random.default_rng(seed)
    shape = soak.random_workload(rng, 0.01).shape
    values = np.arange(np.prod(shape)).reshape(shape)
    selection = soak.random_selection(rng, shape)
    expected = values[np.ix_(*(np.atleast_1d(np.arange(n)[part]) for n, part in zip(shape, selection, strict=True)))]
    found = soak._outer(values, selection)
    np.testing.assert_array_equal(found.ravel(), expected.ravel())
    assert found.ndim == sum(not isinstance(part, int) for part in selection)


# ---- the sweep, and what follows from it

CALIBRATION = {
    "format": "xarray_gpuzarr calibration",
    "version": 1,
    "gpu": "g",
    "date": "d",
    "upload": {"seconds": 1e-5, "bytes_per_second": 1e9},
    "codecs": {},
}


@pytest.fixture
def short_sweep(monkeypatch):
    """Two codecs, two lengths of chunks."""
    two = {name: sweep.CODECS[name] for name in ("zstd", "blosc lz4")}
    for module in (sweep, tune, check_auto):
        monkeypatch.setattr(module, "CODECS", two)
    monkeypatch.setattr("benchmarks.gpu.calibrate.CODECS", two)
    monkeypatch.setattr(sweep, "CHUNK_NBYTES", (16_384, 262_144))
    monkeypatch.setattr(check_auto, "CHUNK_NBYTES", (65_536,))
    monkeypatch.setattr(tune, "KNOBS", {"n_slots": (2, 3)})
    monkeypatch.setenv("XARRAY_GPUZARR_CALIBRATION", "/an/earlier/one")


def test_a_sweep_gives_a_calibration_that_reads_can_use(gpu, out, short_sweep, capsys):
    assert tune.main([*TINY, "--out", str(out)], lambda: gpu) == 0

    written = out.with_name("calibration.json")
    calibration = read_calibration(str(written))
    assert set(calibration.codecs) == {"zstd", "blosc lz4"}
    assert calibration.gpu == "a simulator"
    found = rows(out)
    ways = {name: row["status"] for name, row in found.items() if "storages" not in name}
    assert set(ways.values()) == {"measured"}
    assert [row["status"] for name, row in found.items() if "storages" in name] == ["measured", "absent"]
    printed = capsys.readouterr().out
    assert "zstd: time on the device over the host's" in printed
    assert "262,144" in printed

    assert check_auto.main([*TINY, str(written), "--out", str(out.with_name("auto.json"))], lambda: gpu) in (0, 1)
    auto = rows(out.with_name("auto.json"))
    assert {reader for _, reader in auto} == {"auto", "device", "host, then upload"}
    assert {row["status"] for row in auto.values()} == {"measured"}


def test_a_sweep_that_finds_wrong_values_writes_no_calibration(gpu, out, short_sweep, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "same", lambda *_: False)
    assert tune.main([*TINY, "--only", "sweep zstd", "--out", str(out)], lambda: gpu) == 1
    assert not out.with_name("calibration.json").exists()
    assert "no calibration: the sweep has not run" in capsys.readouterr().err


def test_what_a_calibration_chooses_is_what_runs(gpu, out, short_sweep, monkeypatch, tmp_path):
    """A calibration by which the host is always quicker: the device is asked by "device" only."""
    always = {
        "device": {"chunk_nbytes": [1], "n_chunks": [1], "seconds": [[1e3]]},
        "host": {"chunk_nbytes": [1], "thread_bytes_per_second": [1e12], "most_bytes_per_second": 1e12},
    }
    file = tmp_path / "c.json"
    file.write_text(json.dumps(CALIBRATION | {"codecs": {"zstd": always}}))
    asked = []
    decode = gpu.api.nvcomp.decompress
    monkeypatch.setattr(gpu.api.nvcomp, "decompress", lambda *a, **k: (asked.append(1), decode(*a, **k)), raising=False)

    check_auto.main([*TINY, str(file), "--only", "auto zstd", "--out", str(out)], lambda: gpu)

    # Each way reads twice: once to warm up. By the host, and by a calibration that says host, nothing is asked.
    n_cases = len({case for case, _ in rows(out)})
    assert len(asked) == 2 * n_cases


def swept(codec="zstd"):
    """Return a sweep's results, of round numbers."""
    results = Results({}, None)

    def add(case, about, **seconds):
        results.begin(case, "", about)
        for name, (nbytes, wall) in seconds.items():
            row = Row(case=case, name=name.replace("_", " "), nbytes=nbytes)
            results.sample(row, Sample(wall_s=wall))

    add("uploads", {}, short=(4096, 1e-4), long=(10**9, 0.1001))
    for nbytes, n, wall in ((100, 1, 2.0), (100, 2, 1.0), (100, 4, 6.0), (400, 1, 3.0), (400, 2, 4.0)):
        about = {"codec": codec, "operation": "sweep", "chunk_nbytes": nbytes, "n_chunks": n}
        add(f"{codec} {nbytes} {n}", about, device=(n * nbytes, wall))
    for nbytes, alone, every in ((100, 50.0, 300.0), (400, 200.0, 600.0)):
        about = {"codec": codec, "operation": "host rates", "chunk_nbytes": nbytes, "n_chunks": 8}
        add(f"host {nbytes}", about, one_thread=(1000, 1000 / alone), all_threads=(1000, 1000 / every))
    return results.cases


def test_a_calibration_is_what_was_measured():
    calibration = calibration_of(swept(), "G")

    found = as_document(calibration)
    assert found["gpu"] == "G"
    assert found["upload"] == {"seconds": 1e-4, "bytes_per_second": pytest.approx(1e10)}
    assert found["codecs"]["zstd"]["host"] == {
        "chunk_nbytes": [100, 400],
        "thread_bytes_per_second": pytest.approx([50, 200]),
        "most_bytes_per_second": pytest.approx(600),
    }
    device = found["codecs"]["zstd"]["device"]
    assert (device["chunk_nbytes"], device["n_chunks"]) == ([100, 400], [1, 2, 4])
    # One chunk of 100 took longer than two: the mean of both. Four of 400 were not read: twice two of them.
    np.testing.assert_allclose(device["seconds"], [[1.5, 1.5, 6.0], [3.0, 4.0, 8.0]])


def test_without_uploads_or_a_codec_there_is_no_calibration():
    assert calibration_of([c for c in swept() if c.name != "uploads"], "G") is None
    assert calibration_of([c for c in swept() if not c.name.startswith("host")], "G") is None


@given(arrays(float, (4, 5), elements=st.floats(1e-6, 1e3)))
def test_tables_rise_and_stay_between_their_extremes(measured):
    table = np.array(rising(measured.tolist()))
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert measured.min() <= table.min()
    assert table.max() <= measured.max()


@given(arrays(float, (3, 4), elements=st.floats(1e-6, 1e3)))
def test_tables_that_rise_stay_as_they_are(measured):
    risen = np.maximum.accumulate(np.maximum.accumulate(measured, 0), 1)
    np.testing.assert_allclose(rising(risen.tolist()), risen)


def test_a_choice_that_is_slower_than_the_better_side_is_named():
    def case(name, **seconds):
        timed = [Row(case=name, name=n.replace("_", " "), samples=(Sample(wall_s=s),)) for n, s in seconds.items()]
        return CaseRows(name=name, rows=timed)

    class Found:
        cases = (
            case("good", auto=1.2, device=1.0),
            case("late", auto=1.3, device=1.0),
            case("late by the host", **{"auto": 2.0, "device": 3.0, check_auto.HOST: 1.0}),
            case("alone", auto=9.0),
        )

    assert check_auto.slower(Found()) == [
        "late: 1.3e+03 ms, device 1e+03 ms",
        "late by the host: 2e+03 ms, host, then upload 1e+03 ms",
    ]


# ---- all of them


def test_every_step_runs_though_others_fail(tmp_path, capsys):
    ran = []

    def run(step, log):
        ran.append((step.target, log))
        return 124 if step.target == "soak-gpu" else 0

    assert proof.main(["--logs", str(tmp_path / "logs")], run) == 1

    assert ran == [(step.target, tmp_path / "logs" / f"{step.target}.log") for step in proof.STEPS]
    assert "soak-gpu       exit status 124" in capsys.readouterr().out
    assert sum(step.minutes for step in proof.STEPS) <= 30
    assert all(step.minutes * 60 < proof.MOST_SECONDS for step in proof.STEPS)


def test_steps_can_be_chosen(tmp_path):
    ran = []
    run = lambda step, _: ran.append(step.target) or 0  # noqa: E731
    assert proof.main(["--logs", str(tmp_path), "--only", "tune-gpu", "facts-gpu"], run) == 0
    assert ran == ["facts-gpu", "tune-gpu"]


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
    root = Path(__file__).parents[1]
    makefile, page = (root / "Makefile").read_text(), (root / "docs" / "gpu-proof.md").read_text()
    for step in proof.STEPS:
        assert f"\n{step.target}: " in makefile
        assert f"`make {step.target}` | {step.minutes:g} |" in page
