"""Raw chunks of shards, wherever they lie in their shard and in the result."""

import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from xarray_gpuzarr import CorruptChunkError, ShardIndexError, read_array


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_raw_shards_of_any_shape_are_read(data):
    ndim = data.draw(st.integers(2, 4), "ndim")
    numbers = st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim)
    chunks, per_shard = (
        data.draw(numbers, "chunks"),
        data.draw(numbers.map(lambda n: [min(i, 4) for i in n]), "per shard"),
    )
    shards = [a * b for a, b in zip(chunks, per_shard, strict=True)]
    shape = [data.draw(st.integers(1, 2 * n + 1), f"axis {axis}") for axis, n in enumerate(shards)]
    dtype = data.draw(st.sampled_from(["u1", "<i2", ">i2", "<f8", "<c16"]), "dtype")
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = zarr.create_array({}, data=values, chunks=chunks, shards=shards, compressors=None, fill_value=0)
    selection = tuple(
        slice(start, None) for start in (data.draw(st.integers(0, n - 1), f"start of {n}") for n in shape)
    )

    np.testing.assert_array_equal(read_array(array, device="host"), values)
    np.testing.assert_array_equal(read_array(array, selection, device="host"), values[selection])


def test_blocks_of_raw_shards_are_read_into_one_output(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (32, 64, 96), np.uint16)
    dataset = xr.Dataset({"v": (("z", "y", "x"), values)})
    encoding = {"v": {"chunks": (4, 8, 8), "shards": (16, 32, 32), "compressors": None}}
    dataset.to_zarr(tmp_path / "s", encoding=encoding, consolidated=False)

    loaded = xr.open_dataset(tmp_path / "s", engine="gpuzarr", chunks={}, consolidated=False, device="host").v

    np.testing.assert_array_equal(loaded.values, values)
    np.testing.assert_array_equal(loaded.isel(x=slice(8, 90), y=slice(3, None)).values, values[:, 3:, 8:90])


N_CHUNKS, NBYTES = 8, 2 * 4 * 4 * 4


@pytest.fixture
def shard(tmp_path):
    """Write one shard of eight raw chunks; return its array, values, path, body and index (a copy)."""
    values = np.arange(4 * 8 * 8, dtype="<i4").reshape(4, 8, 8)
    array = zarr.create_array(tmp_path, data=values, chunks=(2, 4, 4), shards=(4, 8, 8), compressors=None, filters=None)
    path = tmp_path / "c/0/0/0"
    stored = path.read_bytes()
    tail = 16 * N_CHUNKS + 4
    index = np.frombuffer(stored[-tail:-4], "<u8").reshape(-1, 2).copy()
    return array, values, path, stored[:-tail], index


def write_shard(path, body, index):
    path.write_bytes(body + index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little"))


def test_raw_chunks_of_a_shard_that_is_not_in_order(shard):
    """A shard may keep its chunks in any order, or leave room between them."""
    array, values, path, stored, index = shard
    chunks = [stored[offset : offset + NBYTES] for offset, _ in index.tolist()]
    order = np.random.default_rng(1).permutation(N_CHUNKS).tolist()
    moved, body = np.zeros((N_CHUNKS, 2), "<u8"), b""
    for gap, number in enumerate(order):
        moved[number] = len(body), NBYTES
        body += chunks[number] + bytes(gap)
    write_shard(path, body, moved)

    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(read_array(array, device="host"), values)


@pytest.mark.parametrize("which", [0, 3, 7])
@pytest.mark.parametrize("wrong", [0, 4, NBYTES - 4, NBYTES + 4])
def test_a_raw_chunk_of_another_length_is_refused_though_all_begin_in_order(shard, which, wrong):
    array, _, path, body, index = shard
    number = int(np.argsort(index[:, 0])[which])
    index[number, 1] = wrong
    end = int((index[:, 0] + index[:, 1]).max())
    write_shard(path, body.ljust(end, b"x") if wrong > NBYTES else body[:end], index)

    with pytest.raises((CorruptChunkError, ShardIndexError)):
        read_array(array, device="host")
