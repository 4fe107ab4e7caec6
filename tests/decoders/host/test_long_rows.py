"""Rows of chunks that are longer than what is copied as one item; rows of 2 GiB and more cannot be one."""

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import write
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import placing

pytestmark = pytest.mark.every_decoder

LIMIT = 64


@pytest.fixture(autouse=True)
def items(monkeypatch):
    """Lower the limit; return the lengths of the items that are asked for."""
    asked = []

    def noting(nbytes):
        asked.append(nbytes)
        return np.dtype((np.void, nbytes))

    monkeypatch.setattr(placing, "MOST_ROW_NBYTES", LIMIT)
    monkeypatch.setattr(placing, "row_dtype", noting)
    yield asked
    assert max(asked, default=0) <= LIMIT


@given(data=st.data())
def test_rows_around_the_limit(data):
    dtype = data.draw(st.sampled_from(["u1", ">i2", "f8"]))
    n = LIMIT // np.dtype(dtype).itemsize + data.draw(st.sampled_from([-1, 0, 1, 100]))
    grid = data.draw(st.sampled_from([{"chunks": (2, n), "shards": (4, 2 * n)}, {"chunks": (2, n)}]))
    codecs = {"compressors": data.draw(st.sampled_from(["auto", None]))}
    values = np.random.default_rng(n).integers(0, 200, (5, 3 * n - 1)).astype(dtype)
    array = write(MemoryStore(), values, zarr_format=3, **codecs, **grid)
    some = tuple(data.draw(st.slices(length)) for length in values.shape)

    for wanted in (slice(None), slice(None)), some:
        got = read_array(array, wanted, device="host")
        assert_same_bits(np.ascontiguousarray(got), np.ascontiguousarray(values[wanted].astype(array.dtype)))


def test_a_row_of_two_gib_is_no_item(monkeypatch):
    monkeypatch.undo()
    untouched = np.empty((1, 2**31), np.uint8)

    placing.copy_rows(untouched, untouched)


def test_part_of_a_chunk_with_rows_of_two_gib():
    array = zarr.create_array(MemoryStore(), shape=(2, 2**31 + 9), chunks=(2, 2**31 + 9), dtype="u1", fill_value=7)

    got = read_array(array, (slice(1, 2), slice(2**31, None)), device="host")

    assert_same_bits(got, np.full((1, 9), 7, "u1"))
