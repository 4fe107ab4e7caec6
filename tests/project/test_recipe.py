"""The recipe of CONTRIBUTING.md, followed step by step in a copy of the package: what it promises is so."""

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
PACKAGE = "xarray_gpuzarr"
STEP = re.compile(r"^\d\. `([\w/]+\.py)`.*?^   ```diff\n(.*?)^   ```$", re.DOTALL | re.MULTILINE)
STEPS = [(path, dedent(diff)) for path, diff in STEP.findall((ROOT / "CONTRIBUTING.md").read_text())]


def changed(text, diff):
    """Return a file with every hunk of a diff made, each in the one place where it fits."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines()
        before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
        after = "\n".join(line[1:] for line in lines if not line.startswith("-"))
        assert text.count(before) == 1, f"fits {text.count(before)} times:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.fixture
def house(tmp_path):
    """A copy of the package."""
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE)
    return tmp_path


def follow(house, steps):
    for path, diff in steps:
        module = house / PACKAGE / path
        module.write_text(changed(module.read_text(), diff))


def run(house, code):
    """Run a program with the copy of the package, in its folder."""
    environment = {**os.environ, "PYTHONPATH": str(house)}
    is_copy = f"import {PACKAGE}; assert {PACKAGE}.__path__ == [{str(house / PACKAGE)!r}]\n"
    command = [sys.executable, "-c", is_copy + code]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, timeout=120, check=False)


def numbers(n):
    return (np.arange(n) * 37 % 1009).astype("i4")


READ_BZ2 = """
import numpy as np, zarr
from xarray_gpuzarr import CorruptChunkError, explain, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.cuda.routes import route as of_cuda
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.read import stored_array

array = zarr.open_array("bz2.zarr", mode="r")
np.save("values.npy", read_array(array))
np.save("two.npy", read_array(zarr.open_array("two.zarr", mode="r")))
stored = stored_array(array)
print(HostDecoder().route(stored.spec, stored.cast))
print(of_cuda(stored.spec, stored.cast))
with zarr_pipeline():
    array = zarr.open_array("bz2.zarr")
array[:100] = array[:100]
print(explain(array).why_not_written)
for damaged in ("cut.zarr", "longer.zarr"):
    try:
        read_array(zarr.open_array(damaged, mode="r"))
    except CorruptChunkError as err:
        print("CorruptChunkError", "bz2" in str(err))
"""


def write_bz2(folder, *, shards=(400,)):
    array = zarr.create_array(
        folder, shape=(1000,), chunks=(100,), shards=shards, dtype="i4", compressors=BZ2(), filters=None
    )
    array[:700] = numbers(700)  # the last shard has chunks that were never written
    return array


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_a_codec_is_decoded_in_bulk(house):
    array = write_bz2(house / "bz2.zarr")
    whole = numbers(100).tobytes()
    frames = {"two": bz2.compress(whole[:80]) + bz2.compress(whole[80:])}
    frames |= {"cut": bz2.compress(whole)[:-5], "longer": bz2.compress(whole * 2)}
    for name, frame in frames.items():
        write_bz2(house / f"{name}.zarr", shards=None)
        (house / f"{name}.zarr" / "c" / "0").write_bytes(frame)
    follow(house, STEPS)

    result = run(house, READ_BZ2)

    assert result.returncode == 0, result.stderr
    assert np.array_equal(np.load(house / "values.npy"), array[...])
    assert np.array_equal(np.load(house / "two.npy"), array[...])
    assert result.stdout.splitlines() == [
        "Route(where='host', why='')",
        "Route(where='host, then one copy to the device', why='bz2: no decoder of the device knows it')",
        "codec bz2 is encoded by zarr-python",
        "CorruptChunkError True",
        "CorruptChunkError True",
    ]


@pytest.mark.parametrize("forgotten", range(2))
def test_a_codec_that_is_half_entered_is_an_error_at_import(house, forgotten):
    steps = list(STEPS)
    del steps[forgotten]
    follow(house, steps)

    result = run(house, "from xarray_gpuzarr import read_array")

    assert result.returncode
    assert "Bz2Spec" in result.stderr.splitlines()[-1]
