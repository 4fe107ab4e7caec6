"""Updates of mutated shards are refused or right in every chunk; ``make fuzz`` makes a million, under sanitizers."""

import numpy as np
import pytest
import zarr
import zstandard
from helpers import fuzzed_updates
from helpers.kernels.on_host import require_compiler, run_child, sanitized_environment
from helpers.traced import takes_less_than
from zarr.storage import MemoryStore

from xarray_gpuzarr import zarr_pipeline


def test_updates_of_mutated_shards():
    counts = fuzzed_updates.fuzz(3000, seed=1)

    assert counts["updates"] == 3000
    assert 300 < counts["written"] < 2700


@pytest.mark.parametrize("chunk", [0, 1, 7])
def test_a_wrong_chunk_would_be_noticed(chunk):
    layout = next(fuzzed_updates.layouts())
    old = layout.shards[0]
    new = bytearray(fuzzed_updates.update(layout, old, 3, 20))
    new[new.index(fuzzed_updates.entries(layout, bytes(new))[chunk])] ^= 1

    with pytest.raises(AssertionError):
        fuzzed_updates.check(layout, old, bytes(new), 3, 20)


def test_sanitizers_find_nothing_in_updates():
    require_compiler()
    child = run_child(sanitized_environment(), "-m", "helpers.fuzzed_updates", "--updates", "2000", "--seed", "3")

    assert child.returncode == 0, child.stdout + child.stderr[-3000:]
    assert child.stdout.startswith("2000 updates")


def test_a_long_chunk_that_all_entries_share_is_carried_over():
    layout = next(each for each in fuzzed_updates.layouts() if "zstd" in str(each.spec.codecs))
    elements = np.arange(fuzzed_updates.CHUNK, dtype="<i4")
    skipped = bytes.fromhex("502a4d18") + (900).to_bytes(4, "little") + bytes(900)
    chunk = zstandard.ZstdCompressor().compress(elements.tobytes()) + skipped
    index = np.array([[0, len(chunk)]] * fuzzed_updates.N_CHUNKS, "<u8").tobytes()
    old = fuzzed_updates.signed(layout, chunk + index + bytes(4))

    new = fuzzed_updates.update(layout, old, 3, 5)

    fuzzed_updates.check(layout, old, new, 3, 5)
    assert fuzzed_updates.entries(layout, new)[1:] == [chunk] * (fuzzed_updates.N_CHUNKS - 1)


def test_an_update_of_many_small_chunks_takes_no_more_room_than_they_do():
    n = 4096
    store = MemoryStore()
    zarr.create_array(store, data=np.arange(16 * n), chunks=(16,), shards=(16 * n,), compressors=None)
    with zarr_pipeline():
        array = zarr.open_array(store)
    array[3:5] = 7
    with takes_less_than(4 * array.nbytes):
        array[5:9] = 7

    np.testing.assert_array_equal(array[:12], [0, 1, 2, *[7] * 6, 9, 10, 11])
