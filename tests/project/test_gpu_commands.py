"""The three short commands of `docs/gpu.md`: their steps and limits, and wheels for a machine without a network."""

import ast
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
"""Time that `timeout -k` leaves to a step that does not end by itself."""


@pytest.fixture(scope="module")
def wheels():
    return runpy.run_path(str(ROOT / ".ci" / "gpu_wheels.py"))


def make(*arguments):
    return subprocess.run(["make", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)


def write_python(path, script):
    """Write a program that stands for the interpreter of a machine with a GPU."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", "abc")
def test_steps_are_those_of_the_page_end_in_time_and_keep_their_output(name):
    printed = make("-n", f"gpu-{name}", "GPU_PYTHON=python3", "OUT=one/folder").stdout
    steps = re.findall(r"\bstep (\d+) (\w+) ", printed)

    assert steps == [(seconds, step) for command, step, seconds in STEPS if command == name]
    assert sum(int(seconds) + GRACE_S for seconds, _ in steps) <= SECONDS[name]
    assert set(re.findall(r"--(?:out|json) (\S+)/\w+\.json", printed)) == {"one/folder"}
    assert "export PYTHONUNBUFFERED=1" in printed  # a step that is stopped keeps what it printed


def test_a_step_that_fails_does_not_keep_others_from_running(tmp_path):
    python = write_python(tmp_path / "python", "echo no GPU\nexit 2")

    ran = make("gpu-b", f"GPU_PYTHON={python}", f"OUT={tmp_path / 'out'}")

    steps = [step for command, step, _ in STEPS if command == "b"]
    assert ran.returncode != 0
    assert re.findall(r"^== (\w+): exit status 2$", ran.stdout, re.MULTILINE) == steps
    logs = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert logs == {f"{step}.log": "no GPU\n" for step in steps}


def test_wheels_for_another_python_are_refused(tmp_path):
    (tmp_path / "one-1-py3-none-any.whl").touch()
    python = write_python(tmp_path / "python", '[ "$1" = --version ] && echo Python 3.99.0\nexit 1')

    ran = make("gpu-b", f"GPU_PYTHON={python}", f"GPU_WHEELS={tmp_path}", f"OUT={tmp_path}", "SITE=no-site")

    assert ran.returncode != 0
    assert f"the wheels are for Python 3.12; GPU_PYTHON={python} is Python 3.99.0" in ran.stderr
    assert "== pool" not in ran.stdout


def test_the_last_line_says_why_a_required_gpu_is_missing():
    """CuPy is not installed here, or finds no driver."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "-k", "recording_an_event"]
    environment = {"PATH": "/usr/bin:/bin", "XARRAY_GPUZARR_REQUIRE_GPU": "1", "CUDA_VISIBLE_DEVICES": ""}

    ran = subprocess.run(
        [*command, "tests/on_gpu"], cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )

    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("no GPU: ")


def test_packages_that_are_present_do_not_travel_unless_rapids_pins_others(wheels):
    needed = wheels["packages"](["zarr==3.4.2", "dask==2026.7.1", "numpy==2.5.5", "rmm_cu13==26.10.0", "bokeh==3.9.2"])
    present = wheels["packages"](["# a comment", "NumPy==2.5.2", "dask==2026.8.0", "rmm-cu13"])

    travels = wheels["missing"](needed, present, pinned=wheels["packages"](["dask==2026.7.1", "rmm-cu13==26.10.0"]))

    assert travels == {"zarr": "3.4.2", "dask": "2026.7.1"}


def test_wheels_that_are_too_large_to_travel_come_with_advice(wheels, tmp_path, capsys):
    for name, n_mib in (("small", 1), ("large", 59)):
        with (tmp_path / f"{name}-1-py3-none-any.whl").open("wb") as wheel:
            wheel.truncate(n_mib * 2**20)

    assert wheels["report"](tmp_path, clone=6.0) == 66

    lines = capsys.readouterr().out.splitlines()
    sizes = [line.split()[0] for line in lines[:5]]
    assert sizes == ["59.00", "1.00", "60.00", "6.00", "66.00"]
    assert lines[5].startswith("Add to the file of --present")


@pytest.mark.parametrize(
    ("name", "kept", "dropped"),
    [
        ("zstandard-1-cp312.whl", "zstandard/backend_c.so", ["zstandard/_cffi.so"]),
        ("blosc-1-cp312.whl", "blosc/blosc_extension.so", ["blosc-1.data/data/lib64/libblosc.a"]),
        ("other-1-cp312.whl", "other/_cffi.so", []),
    ],
)
def test_wheels_lose_files_that_nothing_loads(wheels, tmp_path, name, kept, dropped):
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for path in (kept, *dropped):
            wheel.writestr(path, b"content")

    wheels["slim"](tmp_path / name)

    with zipfile.ZipFile(tmp_path / name) as wheel:
        assert wheel.namelist() == [kept]


PATCHED = sorted(
    {
        name
        for path in ROOT.glob("tests/on_gpu/*.py")
        for name in re.findall(r'setattr\(\s*"(xarray_gpuzarr[\w.]+)"', path.read_text())
    }
)


@pytest.mark.parametrize("name", PATCHED)
def test_what_the_tests_for_gpus_replace_is_in_its_module(name):
    """The modules themselves cannot be imported without CuPy."""
    module, _, attribute = name.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    assert attribute in bound


def test_the_tests_for_gpus_replace_names_of_modules_by_their_paths():
    """So that the test above sees them."""
    for path in ROOT.glob("tests/on_gpu/*.py"):
        assert re.findall(r"setattr\((?:native|device|gds_files)\b", path.read_text()) == [], path
