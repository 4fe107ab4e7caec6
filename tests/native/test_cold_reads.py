"""Reads of local files that are not in the page cache: the loops leave them to a second call, which waits for them."""

from threading import get_ident

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import changed, without_loops
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import GpuZarrError, read_array
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.native import library
from xarray_gpuzarr.process.turns import turns

pytestmark = pytest.mark.usefixtures("compiled", "known_indexes", "nothing_in_memory")

DATA = counting((32, 24)).astype("i4")
LAYOUTS = {"sharded": {"chunks": (8, 6), "shards": (16, 24)}, "unsharded": {"chunks": (8, 6)}}
NOTHING = {
    "ssize_t n = preadv2(file, &room, 1, offset, RWF_NOWAIT);": "(void)room; ssize_t n = -1; errno = EAGAIN;",
    "ASKED_NBYTES = 32 << 20": "ASKED_NBYTES = 500",
}


@pytest.fixture
def nothing_in_memory(monkeypatch):
    """Loops to which no byte of a file seems to be in memory, and which ask for a few chunks at once."""
    loops = changed(tuple(NOTHING.items()))
    monkeypatch.setattr(library, "find", lambda: loops)


@pytest.fixture
def calls(monkeypatch):
    """For each call of the loops that reads files: rows, those that were left, and whether the thread had its turn."""
    found, read_rows = [], LoopOutput.read_rows

    def read(output, rows, files, row, end, *more):
        had_turn = get_ident() in turns.holders
        n_left = read_rows(output, rows, files, row, end, *more)
        found.append((end - row, n_left, had_turn))
        return n_left

    monkeypatch.setattr(LoopOutput, "read_rows", read)
    return found


@pytest.mark.parametrize("compressors", [None, ZstdCodec(), BloscCodec(cname="lz4")], ids=type)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_call_reads_them_while_another_thread_may_have_the_turn(tmp_path, calls, layout, compressors):
    array = write(LocalStore(tmp_path), DATA, compressors=compressors, **LAYOUTS[layout])

    assert_same_bits(read_array(array, (slice(3, 14), slice(2, 20)), device="host"), DATA[3:14, 2:20])

    assert calls == [(8, 8, True), (8, 0, False)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_chunks_among_them_are_filled(tmp_path, calls, layout):
    array = write(
        LocalStore(tmp_path),
        np.full_like(DATA, 7),
        fill_value=7,
        config={"write_empty_chunks": False},
        **LAYOUTS[layout],
    )
    array[:8, 6:12] = DATA[:8, 6:12]
    expected = np.full_like(DATA, 7)
    expected[:8, 6:12] = DATA[:8, 6:12]

    assert_same_bits(read_array(array, slice(0, 16), device="host"), expected[:16])
    assert [n_left for _, n_left, _ in calls][-1] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_was_replaced_is_read_anew(tmp_path, calls, layout):
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS[layout])
    read_array(array, device="host")
    array[:] = DATA * 3

    assert_same_bits(read_array(array, device="host"), DATA * 3)
    assert calls


@pytest.mark.parametrize("length", [0, -5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_was_cut_has_the_error_that_python_words(tmp_path, monkeypatch, layout, length):
    array = write(LocalStore(tmp_path), DATA, compressors=None, **LAYOUTS[layout])
    file = min(file for file in tmp_path.rglob("c/**/*") if file.is_file())
    file.write_bytes(file.read_bytes()[:length])

    with pytest.raises(GpuZarrError) as found:
        read_array(array, slice(1, 32), device="host")
    without_loops(monkeypatch)
    with pytest.raises(GpuZarrError) as expected:
        read_array(array, slice(1, 32), device="host")

    assert (found.type, str(found.value)) == (expected.type, str(expected.value))
