"""Writes that fail: a shard is what it was before, or what it was to be, and readers see no other file."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.interrupts import interrupt, then_interrupt
from helpers.writes import contents
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from xarray_gpuzarr import StoreWriteError, explain, zarr_pipeline
from xarray_gpuzarr.fetch.object_names import place_of
from xarray_gpuzarr.native.library import loops
from xarray_gpuzarr.process.crew import Crew
from xarray_gpuzarr.write import object_locks
from xarray_gpuzarr.write.block_target import BlockTarget

LAYOUT = {"chunks": (10, 100), "shards": (100, 100), "compressors": ZstdCodec(level=1)}


@pytest.fixture
def array(tmp_path):
    """An array of three shards, all ones."""
    with zarr_pipeline():
        array = zarr.create_array(tmp_path / "a", shape=(300, 100), dtype="f8", **LAYOUT)
    array[...] = 1
    return array


def _run(code, *arguments):
    """Run a program that writes until it is killed; it prints a line once it has begun."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_a_path_that_is_taken(array, tmp_path):
    (tmp_path / "a/c/1/0").unlink()
    (tmp_path / "a/c/1/0").mkdir()
    (tmp_path / "a/c/1/0/within").write_text("")

    with pytest.raises(StoreWriteError, match=r"cannot write shard 'c/1/0' of array '/'") as caught:
        array[...] = 2

    assert "irectory" in caught.value.found
    assert sorted(p.name for p in (tmp_path / "a/c/1").iterdir()) == ["0"]


def test_the_memory_of_a_write_that_is_interrupted_is_freed(array, monkeypatch):
    ended, end_write = [], loops().end_write
    monkeypatch.setattr(loops(), "end_write", lambda writing: ended.append(writing) or end_write(writing))
    monkeypatch.setattr(Crew, "run", interrupt)

    with pytest.raises(KeyboardInterrupt):
        BlockTarget(array)[:, :] = np.full(array.shape, 2.0)

    assert len(ended) == 1


_HELD = object_locks._HELD


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (object_locks.Turns, "_take", then_interrupt(object_locks.Turns._take)),
        (object_locks, "_HELD", SimpleNamespace(get=_HELD.get, set=then_interrupt(_HELD.set))),
        (object_locks, "_HELD", SimpleNamespace(get=_HELD.get, set=_HELD.set, reset=interrupt)),
    ],
)
def test_objects_of_a_write_that_is_interrupted_may_be_written_by_others(monkeypatch, owner, name, value):
    monkeypatch.setattr(owner, name, value)
    turns = object_locks.Turns()

    with pytest.raises(KeyboardInterrupt), turns.hold(place_of("a", ""), ["c/0"]):
        pass

    assert not turns._taken
    assert not _HELD.get()


def test_a_full_disk(array, tmp_path):
    """As large files as the system allows end at 10 kB: the write of a file that has some more fails halfway."""
    before = contents(array.store)
    code = """
        import resource, signal, sys
        import numpy as np, zarr
        from xarray_gpuzarr import StoreWriteError, explain, zarr_pipeline
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with zarr_pipeline():
            array = zarr.open_array(sys.argv[1])
        try:
            array[...] = np.random.default_rng(0).standard_normal(array.shape)
        except StoreWriteError as err:
            print(err)
    """
    done = _run(code, tmp_path / "a")
    text, _ = done.communicate(timeout=120)

    assert "cannot write shard 'c/" in text
    assert "File too large" in text
    assert contents(array.store) == before


def test_a_store_that_refuses():
    class Full(WrapperStore):
        async def set(self, key, value):
            if key.startswith("c/"):
                raise OSError(28, "No space left on device")
            await super().set(key, value)

    with zarr_pipeline():
        array = zarr.create_array(Full(MemoryStore()), shape=(300, 100), dtype="f8", **LAYOUT)
    with pytest.raises(StoreWriteError, match="No space left"):
        array[...] = 1


def test_a_store_for_reading_only(array, tmp_path):
    with zarr_pipeline():
        array = zarr.open_array(LocalStore(tmp_path / "a", read_only=True))
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 2


def test_killed_at_any_time(tmp_path):
    """The shard is one of the versions that were written, never a part of one, and readers see no other file."""
    code = """
        import sys
        import numpy as np, zarr
        from xarray_gpuzarr import zarr_pipeline
        with zarr_pipeline():
            array = zarr.open_array(sys.argv[1])
        for version in range(1, 10**6):
            array[...] = np.arange(array.size).reshape(array.shape) * version
            array[150, 5] = -1
            if version == 1:
                print("begun", flush=True)
    """
    with zarr_pipeline():
        zarr.create_array(tmp_path / "a", shape=(300, 100), dtype="f8", **LAYOUT)
    rng, ramp = np.random.default_rng(0), np.arange(30_000, dtype="f8").reshape(300, 100)
    for _ in range(8):
        program = _run(code, tmp_path / "a")
        try:
            assert program.stdout.readline() == "begun\n"
            time.sleep(float(rng.uniform(0, 0.05)))
        finally:
            os.kill(program.pid, signal.SIGKILL)
            program.communicate(timeout=60)

        found = zarr.open_array(tmp_path / "a")[...]
        found[150, 5] = found[150, 6] / ramp[150, 6] * ramp[150, 5]
        for first in (0, 100, 200):
            versions = np.unique(found[first : first + 100].reshape(-1)[1:] / ramp[first : first + 100].reshape(-1)[1:])
            assert len(versions) == 1


@pytest.mark.filterwarnings("ignore:Consolidated")
def test_a_name_that_no_file_can_have(tmp_path):
    """Nothing is written to the file whose name stands before the zero byte."""
    group = zarr.open_group(tmp_path, mode="w")
    group.create_array("a", shape=(8,), chunks=(4,), dtype="i4", fill_value=9)[...] = 1
    zarr.consolidate_metadata(tmp_path)
    document = tmp_path / "zarr.json"
    document.write_text(document.read_text().replace('"a"', '"x\\u0000y"'))
    with zarr_pipeline():
        array = zarr.open_consolidated(LocalStore(tmp_path), mode="r+")["x\0y"]
    before = contents(LocalStore(tmp_path))

    for where in (..., slice(1, 2)):
        with pytest.raises(ValueError, match="null byte"):
            array[where] = 5

    assert contents(LocalStore(tmp_path)) == before
    assert "zarr-python refuses it" in str(explain(array))
