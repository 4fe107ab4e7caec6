"""The three short commands of `docs/gpu.md`: their time, and what travels to a machine without a network."""

import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
SECONDS = {name: int(n) for name, n in re.findall(r"^make gpu-([abc]) +# at most (\d+) seconds", PAGE, re.MULTILINE)}
STEPS = re.findall(r"^\| ([abc]) \| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
GRACE_S = 5
"""What `timeout -k` leaves a step that does not end by itself."""


@pytest.fixture(scope="module")
def wheels():
    return runpy.run_path(str(ROOT / ".ci" / "gpu_wheels.py"))


def commands(name, *variables):
    """Return what make would run."""
    command = ["make", "-n", f"gpu-{name}", "GPU_PYTHON=python3", *variables]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", "abc")
def test_steps_are_those_of_the_page_and_end_in_time(name):
    steps = re.findall(r"\bstep (\d+) (\w+) ", commands(name))

    assert steps == [(seconds, step) for command, step, seconds in STEPS if command == name]
    assert sum(int(seconds) + GRACE_S for seconds, _ in steps) <= SECONDS[name]


def test_logs_and_results_lie_in_one_folder():
    printed = "".join(commands(name, "OUT=one/folder") for name in "abc")

    assert set(re.findall(r"--(?:out|json) (\S+)/\w+\.json", printed)) == {"one/folder"}
    assert "benchmarks/results" not in printed


def test_a_step_that_fails_does_not_keep_others_from_running(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no GPU\nexit 2\n")
    python.chmod(0o755)

    command = ["make", "gpu-b", f"GPU_PYTHON={python}", f"OUT={tmp_path / 'out'}"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    steps = [step for command, step, _ in STEPS if command == "b"]
    assert ran.returncode != 0
    assert re.findall(r"^== (\w+): exit status 2$", ran.stdout, re.MULTILINE) == steps
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        f"{step}.log": "no GPU\n" for step in steps
    }


def test_tests_say_last_why_a_required_gpu_is_missing(tmp_path):
    """CuPy is not here, or finds no driver."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests/on_gpu"]
    environment = {"PATH": "/usr/bin:/bin", "XARRAY_GPUZARR_REQUIRE_GPU": "1", "CUDA_VISIBLE_DEVICES": ""}

    ran = subprocess.run(
        [*command, "-k", "recording_an_event"], cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )

    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("no GPU: ")


def test_packages_that_are_present_do_not_travel_unless_rapids_pins_others(wheels):
    needed = wheels["packages"](["zarr==3.4.2", "dask==2026.7.1", "numpy==2.5.5", "rmm_cu13==26.10.0", "bokeh==3.9.2"])
    present = wheels["packages"](["# a comment", "NumPy==2.5.2", "dask==2026.8.0", "rmm-cu13"])

    travels = wheels["missing"](needed, present, pinned=wheels["packages"](["dask==2026.7.1", "rmm-cu13==26.10.0"]))

    assert travels == {"zarr": "3.4.2", "dask": "2026.7.1"}


def test_what_travels_is_printed_with_its_size(wheels, tmp_path, capsys):
    for name, n_mib in (("small-1-py3-none-any.whl", 1), ("large-1-py3-none-any.whl", 3)):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr("content", bytes(n_mib * 2**20))

    total = wheels["report"](tmp_path, clone=6.0)

    assert total == pytest.approx(10, abs=0.01)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["large-1-py3-none-any.whl", "small-1-py3-none-any.whl"]
    assert [line.strip() for line in lines[2:]] == [
        "4.00 MiB  in 2 wheels",
        "6.00 MiB  in files of this clone that git does not ignore",
        "10.00 MiB  in all; at most 64 MiB may travel",
    ]


def test_what_is_too_large_to_travel_comes_with_advice(wheels, tmp_path, capsys):
    with (tmp_path / "nvidia_cublas-1-py3-none-any.whl").open("wb") as wheel:
        wheel.truncate(60 * 2**20)

    assert wheels["report"](tmp_path, clone=5.0) == 65
    assert "Add to the file of --present" in capsys.readouterr().out


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_the_clone_counts(wheels):
    assert wheels["clone_mib"]() > (ROOT / "xarray_gpuzarr/native/loops.c").stat().st_size / 2**20


@pytest.mark.parametrize(
    ("name", "kept", "dropped"),
    [
        ("zstandard-1-cp312.whl", "zstandard/backend_c.so", "zstandard/_cffi.so"),
        ("blosc-1-cp312.whl", "blosc/blosc_extension.so", "blosc-1.data/data/lib64/libblosc.a"),
        ("other-1-cp312.whl", "other/_cffi.so", None),
    ],
)
def test_wheels_lose_what_nothing_loads(wheels, tmp_path, name, kept, dropped):
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for path in filter(None, (kept, dropped)):
            wheel.writestr(path, b"content")

    wheels["slim"](tmp_path / name)

    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert wheel.namelist() == [kept]
        assert wheel.read(kept) == b"content"


def test_a_list_that_is_not_there_is_said_before_anything_is_collected(tmp_path):
    command = [sys.executable, ROOT / ".ci/gpu_wheels.py", tmp_path / "wheels", "--present", "nowhere.txt"]

    ran = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)

    assert ran.returncode == 2
    assert "nowhere.txt is no file; it has to name the packages" in ran.stderr
    assert not (tmp_path / "wheels").exists()


def test_wheels_for_another_python_are_refused(tmp_path):
    (tmp_path / "one-1-py3-none-any.whl").touch()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.99.0\nexit 1\n')
    python.chmod(0o755)

    command = ["make", "gpu-b", f"GPU_PYTHON={python}", f"GPU_WHEELS={tmp_path}", f"OUT={tmp_path}", "SITE=no-site"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    assert ran.returncode != 0
    assert f"the wheels are for Python 3.12; GPU_PYTHON={python} is Python 3.99.0" in ran.stderr
    assert "== pool" not in ran.stdout


def test_a_step_that_is_stopped_keeps_what_it_printed():
    assert all("export PYTHONUNBUFFERED=1" in commands(name) for name in "abc")
