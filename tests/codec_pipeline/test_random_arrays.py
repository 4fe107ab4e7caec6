"""Random arrays, stored at random, selected at random: the same bits as zarr-python's own pipeline gives."""

from typing import Any

import numcodecs
import numpy as np
import obstore.store
import zarr
from helpers.codec_pipeline import assert_same_reads, opened_by_both, reads_planned
from helpers.data.selections import points
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore, ObjectStore

STORES = {"memory": MemoryStore, "obstore": lambda: ObjectStore(obstore.store.MemoryStore())}
COMPRESSORS = {
    2: [None, numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.Blosc("lz4"), numcodecs.GZip(1)],
    3: [None, ZstdCodec(), GzipCodec(level=1), Crc32cCodec(), BloscCodec(cname="lz4", typesize=2)],
}


@st.composite
def arrays(draw: Any) -> Any:
    """Store an array, of which some is never written; return its store."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=9))
    chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
    zarr_format = draw(st.sampled_from([2, 3]))
    layout: dict[str, Any] = {"compressors": draw(st.sampled_from(COMPRESSORS[zarr_format]))}
    if zarr_format == 2:
        layout |= {"order": draw(st.sampled_from("CF"))}
    elif shape:
        sharded, turned = draw(st.booleans()), draw(st.booleans())
        layout |= {"shards": tuple(n * draw(st.integers(1, 3)) for n in chunks)} if sharded else {}
        layout |= {"filters": TransposeCodec(order=draw(st.permutations(range(len(shape)))))} if turned else {}
    store = STORES[draw(st.sampled_from([*STORES]))]()
    dtype = draw(st.sampled_from(["?", "<i2", ">i4", "u8", "<f4", ">f8", "c16"]))
    array = zarr.create_array(
        store, shape=shape, chunks=chunks, dtype=dtype, fill_value=1, zarr_format=zarr_format, **layout
    )
    written = tuple(draw(st.slices(n)) for n in shape)
    written = tuple(slice(w.start, w.stop, abs(w.step or 1)) for w in written)
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 200, shape).astype(dtype)
    array[written] = values[written]
    return store


def axis(length: int) -> st.SearchStrategy[Any]:
    number = st.integers(-length, length - 1)
    step = st.slices(length).map(lambda s: slice(s.start, s.stop, abs(s.step or 1)))
    return number | step


def index_arrays(length: int) -> st.SearchStrategy[np.ndarray]:
    number = st.integers(-length, length - 1)
    masks = hnp.arrays(bool, (length,))
    return hnp.arrays(np.int64, st.integers(0, 9), elements=number) | masks


@given(store=arrays(), data=st.data())
def test_reads_are_those_of_zarr(store, data):
    both = opened_by_both(store)
    shape = both[0].shape
    basic = data.draw(st.tuples(*map(axis, shape)), label="basic")
    outer = data.draw(st.tuples(*(axis(n) | index_arrays(n) for n in shape)), label="outer")
    block = data.draw(st.tuples(*(st.integers(0, n - 1) for n in both[0].cdata_shape)), label="block")
    mask = data.draw(hnp.arrays(bool, shape), label="mask")
    places = data.draw(points(shape), label="places") if shape else ()

    with reads_planned():
        assert_same_reads(both, lambda a: a[basic])
        assert_same_reads(both, lambda a: a.oindex[outer])
        assert_same_reads(both, lambda a: a.blocks[block])
        if shape:
            assert_same_reads(both, lambda a: a.vindex[places])
            assert_same_reads(both, lambda a: a.vindex[mask])
