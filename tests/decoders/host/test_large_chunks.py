"""Chunks too large to be held encoded, decoded as they are read; and raw runs of several requests."""

import numpy as np
import pytest
import zarr
import zstandard
from helpers.compare import assert_same_bits
from helpers.data.damage import explained
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError, GpuZarrError, read_array

pytestmark = [pytest.mark.every_decoder, pytest.mark.timeout(120)]

N = 4_200_000
"""Elements of a chunk: 16.8 MB as int32."""
DATA = np.arange(2 * N - 1000, dtype="i4") // 100
LAYOUTS = {"sharded": {"chunks": (N,), "shards": (2 * N,)}, "unsharded": {"chunks": (N,)}}
KEYS = {"sharded": "t/c/0", "unsharded": "t/c/1"}
CODECS = {
    "zstd": {"compressors": ZstdCodec(level=1)},
    "zstd-checksum": {"compressors": ZstdCodec(level=1, checksum=True)},
    "big-endian+zstd": {"serializer": BytesCodec(endian="big"), "compressors": ZstdCodec(level=1)},
    "raw": {"compressors": None},
}


def read(array, selection=...):
    return read_array(array, selection, device="host")


@pytest.fixture(scope="module", params=[(layout, codecs) for layout in LAYOUTS for codecs in CODECS], ids="-".join)
def written(request):
    """An array of two large chunks in memory."""
    layout, codecs = request.param
    array = zarr.create_array(
        MemoryStore(), name="t", shape=DATA.shape, dtype="i4", **LAYOUTS[layout], **CODECS[codecs]
    )  # fmt: skip
    array[:] = DATA
    return array


@pytest.fixture(params=["memory", "local"])
def array(request, written, tmp_path):
    """The same array through a store's range reads, and through positional reads of files."""
    if request.param == "memory":
        return written
    for key, value in written.store._store_dict.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value.to_bytes())
    return zarr.open_array(LocalStore(tmp_path), path="t", mode="r")


@pytest.mark.every_value
@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(..., id="everything"),
        pytest.param(slice(0, N), id="one chunk"),
        pytest.param(slice(N - 5, N + 5), id="across the border"),
        pytest.param(slice(None, None, -700_000), id="backwards"),
    ],
)
def test_large_chunks_are_read(array, selection):
    assert_same_bits(np.ascontiguousarray(read(array, selection)), np.ascontiguousarray(DATA[selection]))


def frames_of(data, n_frames, *, checksum=True, size=True):
    """Compress with zstd in `n_frames` frames one after another."""
    raw = data.tobytes()
    step = len(raw) // n_frames
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=checksum, write_content_size=size)
    return b"".join(compressor.compress(raw[at : at + step]) for at in range(0, len(raw), step))


@pytest.fixture(scope="module")
def frame():
    """One chunk of ones and its bytes on disk."""
    return frames_of(np.ones(N, "i4"), 1)


def with_second_chunk(layout, store, encoded):
    """Create an array whose second chunk has these bytes, and whose first is missing."""
    array = zarr.create_array(
        store, name="t", shape=(2 * N,), dtype="i4", fill_value=5, **LAYOUTS[layout], **CODECS["zstd-checksum"]
    )  # fmt: skip
    array[N:] = np.ones(N, "i4")
    stored = take(store, KEYS[layout])
    put(store, KEYS[layout], with_chunk(stored, 2, 1, encoded) if layout == "sharded" else encoded)
    return array


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_large_chunk_is_fill_value(store, layout, frame):
    array = with_second_chunk(layout, store, frame)

    assert_same_bits(read(array), np.repeat(np.array([5, 1], "i4"), N))


@pytest.mark.parametrize("n_frames", [1, 3])
@pytest.mark.parametrize("size", [True, False])
def test_several_frames_are_one_chunk(store, n_frames, size):
    data = np.arange(N, dtype="i4") // 7
    array = with_second_chunk("sharded", store, frames_of(data, n_frames, size=size))

    assert_same_bits(read(array, slice(N, None)), data)


DAMAGE = {
    "empty": lambda frame: b"",
    "cut in the middle": lambda frame: frame[: len(frame) // 2],
    "cut in the checksum": lambda frame: frame[:-1],
    "wrong checksum": lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
    "wrong first block": lambda frame: frame[:20] + bytes([frame[20] ^ 4]) + frame[21:],
    "not zstd": lambda frame: b"<html>404 not found</html>",
    "a frame too many": lambda frame: frame + frame,
    "a frame of another length": lambda frame: zstandard.ZstdCompressor().compress(bytes(4 * N - 4)),
    "a longer frame": lambda frame: zstandard.ZstdCompressor().compress(bytes(4 * N + 4)),
    "zeros": lambda frame: bytes(len(frame)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_large_chunk(memory, layout, damage, frame):
    array = with_second_chunk(layout, memory, DAMAGE[damage](frame))

    with explained(CorruptChunkError, "'/t'", KEYS[layout], "chunk (1,)", "zstd"):
        read(array)
    assert_same_bits(read(array, slice(0, 10)), np.full(10, 5, "i4"))


def test_file_cut_short_while_it_is_read(local, frame):
    array = with_second_chunk("unsharded", local, frame)
    put(local, KEYS["unsharded"], frame[: len(frame) // 3])

    with explained(GpuZarrError, KEYS["unsharded"]):
        read(array)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nbytes", [0, 4 * N - 4, 4 * N + 4])
def test_raw_chunk_of_another_length(store, layout, nbytes):
    array = zarr.create_array(store, name="t", shape=(2 * N,), dtype="i4", **LAYOUTS[layout], **CODECS["raw"])
    array[N:] = np.ones(N, "i4")
    stored = take(store, KEYS[layout])
    put(store, KEYS[layout], with_chunk(stored, 2, 1, bytes(nbytes)) if layout == "sharded" else bytes(nbytes))

    with explained(GpuZarrError, KEYS[layout]):
        read(array)


def test_part_of_a_chunk_with_rows_of_two_gib():
    array = zarr.create_array(MemoryStore(), shape=(2, 2**31 + 9), chunks=(2, 2**31 + 9), dtype="u1", fill_value=7)

    assert_same_bits(read(array, (slice(1, 2), slice(2**31, None))), np.full((1, 9), 7, "u1"))


@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_parts_of_raw_chunks_are_each_longer_than_the_one_before(tmp_path, layout, endian):
    n = 2_500_000  # elements of a chunk: 10 MB, for which each thread of the loops allocates memory itself
    data = np.random.default_rng(0).integers(0, 1 << 30, 5 * n, dtype="i4")
    shards = data.shape if layout == "sharded" else None
    serializer = BytesCodec(endian=endian)
    zarr.create_array(tmp_path, data=data, chunks=(n,), shards=shards, serializer=serializer, compressors=None)
    parts = [(0, 100), (n + 7, n + 30_000), (2 * n - 9, 2 * n + 900_000), (3 * n, 4 * n), (4 * n + 5, 5 * n - 1)]
    positions = np.concatenate([np.arange(first, stop) for first, stop in parts])
    array = zarr.open_array(tmp_path, mode="r")
    assert_same_bits(read(array, positions), data[positions])
    for first, stop in parts:
        assert_same_bits(read(array, slice(first, stop)), data[first:stop])
    assert_same_bits(read(array, slice(1, None, n // 3)), data[1 :: n // 3])
