"""The recipe of CONTRIBUTING.md, followed step by step in a copy of the package: a new codec is decoded in bulk."""

import bz2
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import zarr
from zarr.codecs.numcodecs import BZ2

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^\d\. `([\w/]+\.py)`.*?^   ```diff\n(.*?)^   ```$", re.DOTALL | re.MULTILINE)
STEPS = [(path, dedent(diff)) for path, diff in STEP.findall((ROOT / "CONTRIBUTING.md").read_text())]


def copy_package(folder, steps):
    """Copy the package to a folder, and change the copy as these steps say."""
    shutil.copytree(ROOT / "xarray_gpuzarr", folder / "xarray_gpuzarr")
    for path, diff in steps:
        module = folder / "xarray_gpuzarr" / path
        text = module.read_text()
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines()
            before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
            assert text.count(before) == 1, f"occurs {text.count(before)} times in {path}:\n{before}"
            text = text.replace(before, "\n".join(line[1:] for line in lines if not line.startswith("-")))
        module.write_text(text)


def run(folder, code):
    """Run a program with the copy of the package, in its folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


READ_BZ2 = """
import numpy as np, zarr
from xarray_gpuzarr import CorruptChunkError, explain, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.cuda.routes import route
from xarray_gpuzarr.read import stored_array

with zarr_pipeline():
    array = zarr.open_array("whole.zarr")
np.save("values.npy", read_array(array))
print(explain(array))
stored = stored_array(array)
print(route(stored.spec, stored.cast))
for damaged in ("cut.zarr", "longer.zarr"):
    try:
        read_array(zarr.open_array(damaged, mode="r"))
    except CorruptChunkError as error:
        print(error.found)
"""


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_a_codec_is_decoded_in_bulk(tmp_path):
    copy_package(tmp_path, STEPS)
    numbers = (np.arange(1000) * 37 % 1009).astype("i4")
    chunk = numbers[:100].tobytes()
    two_streams = bz2.compress(chunk[:80]) + bz2.compress(chunk[80:])
    frames = {"whole": two_streams, "cut": bz2.compress(chunk)[:-5], "longer": bz2.compress(chunk * 2)}
    for name, frame in frames.items():
        path = tmp_path / f"{name}.zarr"
        zarr.create_array(path, data=numbers, chunks=(100,), compressors=BZ2(), filters=None)
        (path / "c" / "0").write_bytes(frame)

    result = run(tmp_path, READ_BZ2)

    assert result.returncode == 0, result.stderr
    assert np.array_equal(np.load(tmp_path / "values.npy"), numbers)
    assert result.stdout.splitlines() == [
        "/: host; written by zarr-python (codec bz2 is encoded by zarr-python)",
        "Route(where='host, then one copy to the device', why='bz2: no decoder of the device knows it')",
        "bz2: Compressed file ended before the end-of-stream marker was reached (expected 400 decoded bytes)",
        "bz2: more than 400 bytes (expected 400 decoded bytes)",
    ]


@pytest.mark.parametrize("forgotten", range(2))
def test_a_codec_that_is_half_entered_is_an_error_at_import(tmp_path, forgotten):
    copy_package(tmp_path, [step for number, step in enumerate(STEPS) if number != forgotten])

    result = run(tmp_path, "from xarray_gpuzarr import read_array")

    assert result.returncode
    assert "Bz2Spec" in result.stderr.splitlines()[-1]
