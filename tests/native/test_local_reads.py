"""Reads of local files by one table and one call of the loops; what these leave is read and decoded by Python."""

import os
import time
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory

import google_crc32c
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.stacks import numpy_stack
from helpers.loops import rows_taken, set_costs, without_loops, without_short_reads
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import CorruptChunkError, GpuZarrError, StoreReadError, read_array, zarr_pipeline
from xarray_gpuzarr.codec_pipeline import reading
from xarray_gpuzarr.decoders.host import HostDecoder, loop_table
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.process.fetch_options import FetchOptions, in_force
from xarray_gpuzarr.read.reading import read, read_target
from xarray_gpuzarr.read.stored_array import stored_array
from xarray_gpuzarr.stored.cf import Cast, cast_array

pytestmark = pytest.mark.usefixtures("compiled", "known_indexes")

DATA = counting((32, 24)).astype("i4")
CHUNKS = (8, 6)
LAYOUTS = {
    "sharded": {"chunks": CHUNKS, "shards": (32, 24)},
    "index first": {"chunks": CHUNKS, "shards": (16, 24)},
    "unsharded": {"chunks": CHUNKS},
    "format 2": {"chunks": CHUNKS, "zarr_format": 2},
}
ONE = slice(9, 14), slice(6, 12)
"""Of one chunk."""


@pytest.fixture(params=[1, 3])
def n_threads(request, monkeypatch):
    """Threads that the loops start for any read."""
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(request.param))
    set_costs(monkeypatch, loop_thread_s=1e-9)


@pytest.fixture
def array(tmp_path):
    """One shard of 16 chunks, whose index is known."""
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS["sharded"])
    read_array(array, device="host")
    return array


def read_twice(array, selection):
    """Read with an index that is known, at the latest the second time; say of that time whether one call did it all."""
    read_array(array, selection, device="host")
    with rows_taken() as taken:
        found = read_array(array, selection, device="host")
    return found, len(taken.given) == 1 and taken.n_rows == taken.given[0]


# ---- which, and what they give


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec()], ids=type)
def test_a_box_of_one_object_is_read_at_once(tmp_path, layout, compressors):
    if layout == "format 2" and compressors is not None:
        compressors = "auto"
    array = write(LocalStore(tmp_path), DATA, compressors=compressors, **LAYOUTS[layout])

    found, is_one_call = read_twice(array, ONE)

    assert_same_bits(found, DATA[ONE])
    assert is_one_call


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_system_in_memory_is_read_at_once(layout):
    with TemporaryDirectory(dir="/dev/shm") as folder:
        array = write(LocalStore(folder), DATA, **LAYOUTS[layout])

        found, is_one_call = read_twice(array, ...)

        assert_same_bits(found, DATA)
        assert is_one_call


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", [{"chunks": CHUNKS, "shards": (16, 12)}, {"chunks": (16, 12)}], ids=str)
@pytest.mark.parametrize(
    "selection",
    [
        ...,
        (slice(4, 20), slice(3, 20)),
        (slice(15, 17), 5),
        (slice(None, None, -5), slice(2, 24, 7)),
        (slice(1, 32, 30), slice(3, 24, 19)),
    ],
    ids=str,
)
def test_boxes_of_several_objects(tmp_path, layout, selection):
    array = write(LocalStore(tmp_path), DATA, **layout)

    found, is_one_call = read_twice(array, selection)

    assert_same_bits(np.ascontiguousarray(found), np.ascontiguousarray(DATA[selection]))
    assert is_one_call


@pytest.mark.parametrize("step", [2**62, 2**63 - 3, 2**63 - 1])
def test_steps_of_any_length(array, step):
    selection = slice(3, None, step), slice(1, None, 7)

    found, is_one_call = read_twice(array, selection)

    assert_same_bits(found, DATA[selection])
    assert is_one_call
    index_cache.cache.clear()
    assert_same_bits(read_array(array, selection, device="host"), DATA[selection])  # planned


def test_memory_for_decoding_lives_until_the_loops_are_done(array, monkeypatch):
    given, lived, read_rows = [], [], LoopOutput.read_rows

    def forgotten(_name, nbytes):
        memory = np.empty(nbytes, np.uint8)
        given.append(weakref.ref(memory))
        return memory, address(memory)

    def noting(*arguments):
        lived.append([memory() is not None for memory in given])
        return read_rows(*arguments)

    without_short_reads(monkeypatch)
    monkeypatch.setattr(loop_table, "borrow_buffer", forgotten)  # as long buffers are, which threads do not keep
    monkeypatch.setattr(LoopOutput, "read_rows", noting)

    assert_same_bits(read_array(array, ONE, device="host"), DATA[ONE])
    assert lived == [[True, True]]


def test_an_output_that_may_not_be_written_is_left(array):
    out = np.full(DATA.shape, -1, "i4")
    out.flags.writeable = False

    found = read(stored_array(array), ..., HostDecoder(), out)

    assert_same_bits(found, DATA)
    assert (out == -1).all()


@pytest.mark.parametrize("kind", ["in disorder", "of the same bytes"])
def test_chunks_of_a_shard_wherever_they_lie(array, tmp_path, kind):
    path, expected = tmp_path / "c/0/0", DATA.copy()
    shard = path.read_bytes()
    tail = 16 * 16 + 4
    index = np.frombuffer(shard[-tail:-4], "<u8").reshape(16, 2).copy()
    chunks = [shard[at : at + n] for at, n in index.tolist()]
    if kind == "in disorder":
        order = np.random.default_rng(1).permutation(16)
        body = b"".join(chunks[n] + b"gap" for n in order)
        index[order, 0] = np.cumsum([0] + [len(chunks[n]) + 3 for n in order])[:-1]
    else:
        body = shard[:-tail]
        index[[2, 9]] = index[6]
        expected[0:8, 12:18] = expected[16:24, 6:12] = expected[8:16, 12:18]
    path.write_bytes(body + index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little"))

    found, is_one_call = read_twice(array, (slice(1, 31), slice(1, 23)))

    assert_same_bits(found, expected[1:31, 1:23])
    assert is_one_call


@pytest.mark.parametrize("where", ["zarr's event loop", "a thread"])
def test_the_codec_pipeline_reads_so(tmp_path, where, monkeypatch):
    if where == "a thread":
        monkeypatch.setattr(reading, "SHORT_READ_S", 0.0)
    write(LocalStore(tmp_path), DATA, **LAYOUTS["sharded"])
    with zarr_pipeline():
        array = zarr.open_array(LocalStore(tmp_path), mode="r")
        array[...]
        with rows_taken() as taken:
            assert_same_bits(array[3:20, 2:21:3], DATA[3:20, 2:21:3])
            assert_same_bits(array.oindex[ONE], DATA[ONE])
    assert len(taken.given) == 2
    assert taken.n_rows == sum(taken.given)


# ---- a table for several calls


def test_what_takes_long_is_several_calls(array, monkeypatch):
    set_costs(monkeypatch, call_s=0)

    with rows_taken() as taken:
        assert_same_bits(read_array(array, (slice(4, 20), slice(3, 20)), device="host"), DATA[4:20, 3:20])
    assert taken.given == [1] * taken.n_rows


def test_many_rows(tmp_path):
    for n_shards in 1, 3:
        data = counting((1500,))
        array = write(LocalStore(tmp_path / str(n_shards)), data, chunks=(1,), shards=(1500 // n_shards,))
        read_array(array, device="host")
        assert_same_bits(read(stored_array(array), ..., HostDecoder(), np.zeros_like(data)), data)


@pytest.mark.parametrize("without", [False, True], ids=["loops", "no loops"])
def test_raw_chunks_side_by_side_in_different_shards(tmp_path, monkeypatch, without):
    """The second one lies in its shard where the first one ends in its own."""
    if without:
        without_loops(monkeypatch)
    set_costs(monkeypatch, serial_s=0)
    array = write(
        LocalStore(tmp_path), np.array([[0, 5], [7, 9]]), chunks=(1, 1), shards=(2, 1), compressors=None, fill_value=0
    )
    read_array(array, device="host")

    assert_same_bits(read_array(array, slice(1, 2), device="host"), np.array([[7, 9]]))


# ---- what is missing, or left


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", [*LAYOUTS.values(), {"chunks": CHUNKS, "shards": (16, 12)}], ids=str)
def test_missing_chunks_are_filled_by_the_loops(tmp_path, layout):
    values = DATA.copy()
    values[8:16, 6:12] = values[16:, :12] = 7
    array = write(LocalStore(tmp_path), values, fill_value=7, **layout)

    for selection in (ONE, (slice(0, 24), slice(4, 14)), (slice(1, 30, 3), slice(None, None, 2)), (slice(16, 32), 3)):
        with rows_taken() as taken:
            found = read_array(array, selection, device="host")
        assert_same_bits(np.ascontiguousarray(found), np.ascontiguousarray(values[selection]))
        assert taken.n_rows == sum(taken.given) > 0


@pytest.mark.parametrize(
    ("dtype", "fill", "cast"),
    [
        ("<i2", -32768, Cast(dtype="<f4", mask=(-32768,), scale=0.5, offset=3)),
        (">f8", np.nan, Cast(dtype=">f8")),
        (">i4", 5, Cast(dtype="<c16")),
        ("<c16", 1 - 2j, Cast(dtype="<c16")),
        ("|b1", True, Cast(dtype="|b1")),
    ],
    ids=str,
)
def test_fill_values_are_cast(tmp_path, dtype, fill, cast):
    array = zarr.create_array(
        LocalStore(tmp_path), shape=(9, 40), chunks=(3, 8), shards=(6, 24), dtype=dtype, fill_value=fill
    )
    array[:4, :9] = np.arange(36).reshape(4, 9).astype(dtype)
    array[6:, 24:] = 1
    stored, expected = stored_array(array, cast), cast_array(cast, np.asarray(array[...]))

    for order in "C", "F":
        for key in ((slice(None), slice(None)), (slice(1, 9, 2), slice(3, 39, 5)), ([0, 4, 8], slice(None))):
            wanted = expected[key]
            out = np.zeros_like(wanted, order=order)
            with rows_taken() as taken:
                assert read(stored, key, HostDecoder(), out) is out
            assert taken.n_rows == sum(taken.given)
            assert_same_bits(np.ascontiguousarray(out), np.ascontiguousarray(wanted))


@pytest.mark.parametrize("how", ["over", "renamed", "gone"])
@pytest.mark.parametrize("shards", [(32, 24), (16, 12)], ids=str)
def test_a_shard_that_was_replaced(tmp_path, how, shards):
    layout = {"chunks": CHUNKS, "shards": shards}
    array, selection = write(LocalStore(tmp_path), DATA, **layout), (slice(4, 20), slice(3, 20))
    read_array(array, device="host")
    write(LocalStore(tmp_path / "new"), -DATA, **layout)
    path, new, expected = tmp_path / "c/0/0", tmp_path / "new/c/0/0", DATA.copy()
    expected[: shards[0], : shards[1]] *= -1
    if how == "renamed":
        new.replace(path)
    elif how == "over":
        path.write_bytes(new.read_bytes())
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    else:
        path.unlink()
        expected[: shards[0], : shards[1]] = 0
        with pytest.raises(StoreReadError, match="has disappeared"):
            read_array(array, selection, device="host")

    for _ in range(3):
        assert_same_bits(read_array(array, selection, device="host"), expected[selection])


def test_a_shard_that_is_gone_beside_others(tmp_path):
    """It held nothing of what is wanted; the versions of the others are still those of their files."""
    values = DATA.copy()
    values[8:16] = 0
    array = write(LocalStore(tmp_path), values, chunks=CHUNKS, shards=(16, 24))
    read_array(array, device="host")
    (tmp_path / "c/0/0").unlink()

    with rows_taken() as taken:
        found = read_array(array, slice(8, 32), device="host")

    assert_same_bits(found, values[8:])
    assert taken.given == [taken.n_rows]


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_a_shard_that_is_replaced_between_two_chunks(tmp_path, monkeypatch, n_before):
    """Both versions have all chunks where the index says; only the file tells that it is another one."""
    layout = {"chunks": CHUNKS, "shards": (32, 24), "compressors": None}
    array = write(LocalStore(tmp_path), DATA, **layout)
    read_array(array, device="host")
    write(LocalStore(tmp_path / "new"), -DATA, **layout)
    calls, read_rows = [], LoopOutput.read_rows

    def replacing(*arguments):
        if len(calls) == n_before:
            (tmp_path / "new/c/0/0").replace(tmp_path / "c/0/0")
        calls.append(arguments)
        return read_rows(*arguments)

    without_short_reads(monkeypatch)
    set_costs(monkeypatch, call_s=0)  # a chunk a call
    monkeypatch.setattr(LoopOutput, "read_rows", replacing)

    assert_same_bits(read_array(array, (slice(1, 30), slice(1, 20)), device="host"), -DATA[1:30, 1:20])
    assert len(calls) > n_before


def test_a_path_that_c_cannot_take(array, monkeypatch):
    monkeypatch.setattr(LocalSource, "local_path", lambda source, key: f"{source.root}/\0{key}")
    with rows_taken() as taken, pytest.raises(StoreReadError, match="null byte"):
        read_array(array, ONE, device="host")
    assert not taken.given


def files(path):
    """The files of chunks or shards, in the order of their names."""
    return sorted(file for file in path.rglob("c/**/*") if file.is_file())


def take_out_of_memory(path):
    with path.open("rb") as file:
        fd = file.fileno()
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        pytest.skip("the file system keeps files in memory")


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="files are taken out of memory on Linux")
@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
def test_files_that_are_not_in_memory(tmp_path, layout):
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS[layout])
    for file in files(tmp_path):
        take_out_of_memory(file)

    assert_same_bits(read_array(array, slice(3, 30), device="host"), DATA[3:30])


@pytest.mark.parametrize("name", ["a b", "ä", "new\nline", "x" * 200])
@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
def test_names_of_all_kinds(tmp_path, name, layout):
    array = write(LocalStore(tmp_path / name), DATA, **LAYOUTS[layout])

    with rows_taken() as taken:
        assert_same_bits(read_array(array, (slice(1, 32), slice(1, 24)), device="host"), DATA[1:, 1:])

    assert taken.n_rows == 16


UNNOTICED = [("longer", ZstdCodec()), ("longer", BloscCodec()), ("noise", None)]
"""Frames that follow a whole one are passed over, and any bytes are raw values."""


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "noise"])
@pytest.mark.parametrize("compressors", [ZstdCodec(), BloscCodec(), None])
def test_damaged_files_have_the_errors_that_python_words(tmp_path, monkeypatch, damage, compressors):
    array = write(LocalStore(tmp_path), DATA, compressors=compressors, **LAYOUTS["unsharded"])
    content = (file := files(tmp_path)[9]).read_bytes()
    noise = bytes(len(content) - 1) + b"x"
    file.write_bytes({"cut": content[:-5], "longer": content * 40, "empty": b"", "noise": noise}[damage])

    found = raised(lambda: read_array(array, slice(1, 32), device="host"))
    without_loops(monkeypatch)

    assert found == raised(lambda: read_array(array, slice(1, 32), device="host"))
    assert found[0] is CorruptChunkError or (damage, compressors) in UNNOTICED


def raised(read):
    try:
        read()
    except GpuZarrError as err:
        return type(err), str(err)
    return None, ""


@pytest.mark.parametrize("gap", [0, 1, 100, 10**6])
@pytest.mark.parametrize("rows", [slice(0, 5), slice(5, 21), slice(21, 32)])
def test_gaps_between_chunks_are_read_or_not(tmp_path, monkeypatch, gap, rows):
    """Neighbours are one range of the file while what lies between is short."""
    array = write(LocalStore(tmp_path), DATA, compressors=None, **LAYOUTS["sharded"])
    monkeypatch.setattr(in_force, "options", FetchOptions(max_gap_nbytes=gap))

    assert_same_bits(read_array(array, (rows, [0, 7, 23]), device="host"), DATA[rows][:, [0, 7, 23]])
    assert_same_bits(read_array(array, (rows, slice(0, 24, 7)), device="host"), DATA[rows, ::7])


# ---- stacked crops of several shards

CROPS = [
    Crops(start=np.array([0, 22, 13, 22, 25, 5]), count=7),
    Crops(start=np.array([14, 0, 9, 3, 13, 11]), count=10),
]


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec()], ids=type)
def test_crops_of_several_shards_are_one_call(tmp_path, compressors):
    array = write(LocalStore(tmp_path), DATA, compressors=compressors, chunks=(4, 6), shards=(16, 12))
    stored = stored_array(array)
    target = stack_target(CROPS, 6, stored.spec.grid)

    for _ in range(2):  # the first time asks for the indexes
        out = np.full(target.shape, 99, stored.cast.dtype)
        with rows_taken() as taken:
            assert_same_bits(read_target(stored, stored.spec, target, HostDecoder(), out), numpy_stack(DATA, CROPS, 6))
    assert taken.given == [taken.n_rows]
