"""Chunks of local files that the compiled loops read, decode and place in one call; what is unusual is read as ever."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import rows_taken, set_costs, without_loops
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import read_array, zarr_pipeline
from xarray_gpuzarr.errors import CorruptChunkError, GpuZarrError
from xarray_gpuzarr.process import fetch_options
from xarray_gpuzarr.process.fetch_options import FetchOptions

pytestmark = pytest.mark.usefixtures("compiled")

DATA = counting((64, 48)).astype("i4")
CHUNKS = (8, 12)
N_CHUNKS = 32


def written(path, *, sharded, compressors=None, data=DATA, **more):
    layout = {"shards": (32, 48)} if sharded else {}
    return write(LocalStore(path), data, chunks=CHUNKS, compressors=compressors, **layout, **more)


def files(path):
    """The files of chunks or shards, in the order of their names."""
    return sorted(file for file in Path(path).rglob("c/**/*") if file.is_file())


@pytest.fixture(params=[1, 2, 5])
def n_threads(request, monkeypatch):
    """Threads that the loops start for any read."""
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(request.param))
    set_costs(monkeypatch, loop_thread_s=1e-9)
    return request.param


@pytest.mark.usefixtures("n_threads")
def test_a_directory_is_a_missing_chunk(tmp_path):
    array = written(tmp_path, sharded=False, compressors=ZstdCodec(), fill_value=7)
    files(tmp_path)[5].unlink()
    files_at = tmp_path / "c" / "1" / "1"
    files_at.mkdir()
    expected = DATA.copy()
    expected[8:16, 12:24] = 7

    assert_same_bits(read_array(array, device="host"), expected)


def test_missing_chunks_that_may_not_be_missing(tmp_path):
    """zarr-python has them told, though the loops know only files."""
    written(tmp_path, sharded=False, compressors=ZstdCodec())
    files(tmp_path)[4].unlink()

    with zarr_pipeline(), zarr.config.set({"array.read_missing_chunks": False}):
        array = zarr.open_array(LocalStore(tmp_path), mode="r")
        with pytest.raises(zarr.errors.ChunkNotFoundError):
            array[:]


@pytest.mark.parametrize("sharded", [False, True])
def test_files_that_are_not_in_memory(tmp_path, sharded):
    array = written(tmp_path, sharded=sharded, compressors=ZstdCodec())
    for file in files(tmp_path):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    assert_same_bits(read_array(array, (slice(3, 60), slice(None)), device="host"), DATA[3:60])


@pytest.mark.parametrize("name", ["a b", "ä", "new\nline", "x" * 200])
@pytest.mark.parametrize("sharded", [False, True])
def test_names_of_all_kinds(tmp_path, name, sharded):
    array = written(tmp_path / name, sharded=sharded, compressors=ZstdCodec())

    with rows_taken() as taken:
        assert_same_bits(read_array(array, (slice(1, 64), slice(1, 48)), device="host"), DATA[1:64, 1:48])

    assert taken.n_rows == N_CHUNKS


UNNOTICED = [("longer", ZstdCodec()), ("longer", BloscCodec()), ("noise", None)]
"""Frames that follow a whole one are passed over, and any bytes are raw values."""


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "noise"])
@pytest.mark.parametrize("compressors", [ZstdCodec(), BloscCodec(), None])
def test_damaged_files_have_the_errors_that_python_words(tmp_path, monkeypatch, damage, compressors):
    array = written(tmp_path, sharded=False, compressors=compressors)
    file = files(tmp_path)[9]
    content = file.read_bytes()
    changed = {"cut": content[:-5], "longer": content * 40, "empty": b"", "noise": bytes(len(content) - 1) + b"x"}[
        damage
    ]
    file.write_bytes(changed)
    wanted = (slice(1, 64), slice(1, 48))

    found = raised(lambda: read_array(array, wanted, device="host"))
    without_loops(monkeypatch)

    assert found == raised(lambda: read_array(array, wanted, device="host"))
    assert found[0] is CorruptChunkError or (damage, compressors) in UNNOTICED


def raised(read):
    try:
        read()
    except GpuZarrError as err:
        return type(err), str(err)
    return None, ""


def test_gaps_between_chunks_are_read_or_not(tmp_path, monkeypatch):
    """Neighbours are one range of the file while what lies between is short."""
    array = written(tmp_path, sharded=True)
    for gap in (0, 1, 400, 10**6):
        monkeypatch.setattr(fetch_options.in_force, "get", lambda gap=gap: FetchOptions(max_gap_nbytes=gap))
        for lo, hi in pairwise([0, 5, 21, 64]):
            assert_same_bits(
                read_array(array, (slice(lo, hi), [0, 13, 47]), device="host"), DATA[lo:hi][:, [0, 13, 47]]
            )
            assert_same_bits(read_array(array, (slice(lo, hi), slice(0, 48, 13)), device="host"), DATA[lo:hi, ::13])
