"""The recipes of CONTRIBUTING.md, followed step by step in a copy of the package: what they promise is so."""

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
import xarray as xr
import zarr
from zarr.codecs.numcodecs import BZ2

ROOT = Path(__file__).parents[2]
PACKAGE = "xarray_gpuzarr"
RECIPE = re.compile(r"^### (.*?)\n(.*?)(?=^##)", re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^\d\. `([\w/]+\.py)`.*?^   ```diff\n(.*?)^   ```$", re.DOTALL | re.MULTILINE)
RECIPES = {
    title: [(path, dedent(diff)) for path, diff in STEP.findall(text)]
    for title, text in RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text())
}
CODEC, CF, STORE = "A codec", "A step of CF decoding", "A kind of store"


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
    command = [
        sys.executable,
        "-c",
        f"import {PACKAGE}; assert {PACKAGE}.__path__ == [{str(house / PACKAGE)!r}]\n{code}",
    ]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, timeout=120, check=False)


def printed(house, code):
    result = run(house, code)
    assert result.returncode == 0, result.stderr
    return result.stdout


def numbers(n):
    return (np.arange(n) * 37 % 1009).astype("i4")


READ_BZ2 = """
import numpy as np, zarr
from xarray_gpuzarr import CorruptChunkError, read_array
from xarray_gpuzarr.decoders.cuda.routes import route as of_cuda
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.read import stored_array

array = zarr.open_array("bz2.zarr", mode="r")
np.save("values.npy", read_array(array))
np.save("two.npy", read_array(zarr.open_array("two.zarr", mode="r")))
stored = stored_array(array)
print(HostDecoder().route(stored.spec, stored.cast))
print(of_cuda(stored.spec, stored.cast))
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


def test_the_recipes_take_four_files_at_most():
    assert {title: len({path for path, _ in steps}) for title, steps in RECIPES.items()} == {CODEC: 2, CF: 4, STORE: 1}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_a_codec_is_decoded_in_bulk(house):
    array = write_bz2(house / "bz2.zarr")
    whole = numbers(100).tobytes()
    frames = {"two": bz2.compress(whole[:80]) + bz2.compress(whole[80:])}
    frames |= {"cut": bz2.compress(whole)[:-5], "longer": bz2.compress(whole * 2)}
    for name, frame in frames.items():
        write_bz2(house / f"{name}.zarr", shards=None)
        (house / f"{name}.zarr" / "c" / "0").write_bytes(frame)
    before = printed(house, READ_BZ2)
    follow(house, RECIPES[CODEC])

    after = printed(house, READ_BZ2)

    assert np.array_equal(np.load(house / "values.npy"), array[...])
    assert np.array_equal(np.load(house / "two.npy"), array[...])
    assert before.count("codec numcodecs.bz2 is decoded chunk by chunk") == 2
    assert after.splitlines() == [
        "Route(where='host', why='')",
        "Route(where='host, then one copy to the device', why='bz2: no decoder of the device knows it')",
        "CorruptChunkError True",
        "CorruptChunkError True",
    ]


@pytest.mark.parametrize("forgotten", range(2))
def test_a_codec_that_is_half_entered_is_an_error_at_import(house, forgotten):
    steps = list(RECIPES[CODEC])
    del steps[forgotten]
    follow(house, steps)

    result = run(house, "from xarray_gpuzarr import read_array")

    assert result.returncode
    assert "Bz2Spec" in result.stderr.splitlines()[-1]


EXPLAIN_CF = """
import numpy as np, xarray as xr
from xarray_gpuzarr.decoders.cuda.routes import route as of_cuda
from xarray_gpuzarr.backend.lazy_array import find_lazy_array

ds = xr.open_dataset("cf.zarr", engine="gpuzarr")
stored = find_lazy_array(ds["t"].variable._data).stored
print(ds.gpuzarr.explain())
print(of_cuda(stored.spec, stored.cast))
np.save("whole.npy", ds["t"].values)
np.save("part.npy", ds["t"][3:20:2].values)
"""


def test_a_step_of_cf_is_done_everywhere(house):
    packed = numbers(60).astype("i2")
    attrs = {"valid_max": 900, "scale_factor": 0.5, "_FillValue": -1}
    ds = xr.Dataset({"t": ("x", packed, attrs)})
    ds.to_zarr(house / "cf.zarr", zarr_format=3, consolidated=False, encoding={"t": {"chunks": (10,), "shards": (20,)}})
    follow(house, RECIPES[CF])

    said = printed(house, EXPLAIN_CF)

    expected = np.where(packed > 900, np.nan, packed * 0.5)
    assert np.isnan(expected).any()
    assert np.array_equal(np.load(house / "whole.npy"), expected, equal_nan=True)
    assert np.array_equal(np.load(house / "part.npy"), expected[3:20:2], equal_nan=True)
    assert "mask -1, at most 900, * 0.5" in " ".join(said.split())
    assert "where='host, then one copy to the device', why='no kernel masks values above valid_max'" in said


PIGEON = '''
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.buffer import cpu
from zarr.storage import LocalStore


class PigeonStore(LocalStore):
    """Bytes of a folder, with the time of the last change as the tag."""

    address = "north tower"
    asked = []

    async def get(self, key, prototype, byte_range=None):
        self.asked.append(type(byte_range).__name__)
        return await super().get(key, prototype, byte_range)

    async def get_tagged(self, key, request):
        buffer = await self.get(key, cpu.buffer_prototype, request)
        if buffer is None:
            return None
        known = (self.root / key).stat()
        return buffer.to_bytes(), known.st_size, known.st_mtime_ns
'''
READ_PIGEON = """
import os
import numpy as np, zarr
from pigeon import PigeonStore
from xarray_gpuzarr import read_array

array = zarr.open_array(PigeonStore("letters.zarr", read_only=True), mode="r")

def read(name):
    PigeonStore.asked.clear()
    np.save(name, read_array(array, np.s_[:100]))
    print(*PigeonStore.asked)

read("first.npy")
read("again.npy")
zarr.open_array("letters.zarr")[:] = 1000 - np.arange(800)
read("replaced.npy")
"""


def test_the_indexes_of_a_store_that_tells_versions_are_kept(house):
    (house / "pigeon.py").write_text(PIGEON)
    array = zarr.create_array(house / "letters.zarr", shape=(800,), chunks=(100,), shards=(400,), dtype="i4")
    array[:] = numbers(800)
    before = printed(house, READ_PIGEON).splitlines()
    array[:] = numbers(800)
    follow(house, RECIPES[STORE])

    after = printed(house, READ_PIGEON).splitlines()

    assert before == ["SuffixByteRequest RangeByteRequest"] * 3
    assert after[:2] == ["SuffixByteRequest RangeByteRequest", "RangeByteRequest"]
    assert np.array_equal(np.load(house / "first.npy"), numbers(100))
    assert np.array_equal(np.load(house / "again.npy"), numbers(100))
    assert np.array_equal(np.load(house / "replaced.npy"), 1000 - np.arange(100))
