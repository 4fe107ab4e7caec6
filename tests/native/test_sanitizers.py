"""The loops built with sanitizers: no access outside of an allocation, nothing that C leaves undefined."""

import os
import subprocess

import pytest
from helpers.every_pair import COMBINATIONS, usually
from helpers.kernels.on_host import require_compiler, run_child, sanitized_environment

from xarray_gpuzarr.native import library

pytestmark = pytest.mark.timeout(230)

CAUGHT = """
import numpy as np
from helpers.loops import require_loops
data = np.zeros(8192, np.uint8)
require_loops().crc32c(data.ctypes.data, {nbytes})
"""
"""Asks for the checksum of bytes that are not there."""


@pytest.fixture(scope="module")
def environment():
    """That of a process in which the loops end at the first wrong access."""
    environment = sanitized_environment() | {"PYTHONMALLOC": "malloc"}
    environment["ASAN_OPTIONS"] += ":quarantine_size_mb=16"
    probe = run_child(environment, "-c", "pass")
    if probe.returncode:
        missing = pytest.fail if os.environ.get("XARRAY_GPUZARR_REQUIRE_COMPILER") == "1" else pytest.skip
        missing(f"no process runs under sanitizers here: {probe.stderr[-300:]}")
    return environment


def test_a_wrong_access_would_be_noticed(environment):
    done = run_child(environment, "-c", CAUGHT.format(nbytes=8193))

    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


def test_damaged_frames(environment):
    done = run_child(environment, "-m", "helpers.damaged_reads", "all", "60", "3")

    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 6


# Python's own allocator hides small objects; only chunks of the first are some, and watching all of them takes long.
@pytest.mark.parametrize(
    ("modules", "allocator"),
    [
        (["native/test_place_rows"], "malloc"),
        (["native/test_steps", "native/test_local_reads", "decoders/host/test_short_reads"], "pymalloc"),
        (["write/test_parts", "write/test_same_as_zarr"], "pymalloc"),
    ],
    ids=["small", "others", "writes"],
)
def test_random_reads_and_writes(environment, modules, allocator):
    files = [f"tests/{name}.py" for name in modules]
    chosen = {"PYTHONMALLOC": allocator, COMBINATIONS: usually("values", full="all")}
    done = run_child(environment | chosen, "-m", "pytest", "-q", "-x", *files)

    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert " passed" in done.stdout


def test_no_warnings(tmp_path):
    """As the loops are built for users, with all warnings."""
    command = [require_compiler(), "-x", "c", "-std=gnu11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "loops.so"), str(library.SOURCE)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
