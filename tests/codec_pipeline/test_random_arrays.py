"""Random arrays, stored at random, selected at random: the same bits as zarr-python's own pipeline gives."""

import asyncio
from typing import Any

import numcodecs
import numpy as np
import obstore.store
import pytest
import zarr
from helpers.codec_pipeline import assert_same_reads, opened_by_both, reads_planned
from helpers.compare import assert_same_bits
from helpers.data.selections import points
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore, ObjectStore

pytestmark = pytest.mark.both_ways

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


@given(store=arrays(), order=st.sampled_from("CF"), data=st.data())
def test_reads_are_those_of_zarr(store, order, data):
    both = opened_by_both(store, config={"order": order})
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


METHODS = ("basic", "orthogonal", "mask")


def filled(array: Any, method: str, key: Any, out: np.ndarray) -> np.ndarray:
    """Return the output that a selection was read into; what it says of values that it cannot hold."""
    try:
        getattr(array, f"get_{method}_selection")(key, out=cpu.NDBuffer(out))
    except (ValueError, OverflowError) as error:
        return np.array(str(error))
    return out


@given(
    store=arrays(),
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from(["?", "i1", "f4", ">f8", "c16"]),
    data=st.data(),
)
@pytest.mark.filterwarnings("ignore")  # of what is lost in conversions, by either
def test_outputs_of_the_callers_are_filled_as_by_zarr(store, method, dtype, data):
    own, ours = opened_by_both(store)
    shape = own.shape
    key = {
        "basic": st.tuples(*map(axis, shape)),
        "orthogonal": st.tuples(*(axis(n) | index_arrays(n) for n in shape)),
        "mask": hnp.arrays(bool, shape or (1,)),
    }[method]
    key = data.draw(key, label="key")
    assume(shape or method == "basic")
    like = np.asarray(getattr(own, f"get_{method}_selection")(key))
    step = data.draw(st.sampled_from([1, 2]), label="step")
    outs = [
        np.zeros([n * step for n in like.shape], dtype)[(slice(None, None, step),) * like.ndim + (...,)] for _ in "ab"
    ]

    assert_same_bits(filled(ours, method, key, outs[0]), filled(own, method, key, outs[1]))


@given(store=arrays(), data=st.data())
def test_coroutines_read_what_zarr_reads(store, data):
    own, ours = opened_by_both(store)
    keys = data.draw(st.lists(st.tuples(*map(axis, own.shape)), min_size=1, max_size=5), label="keys")

    async def read_all(array: Any) -> list[Any]:
        return await asyncio.gather(*(array.async_array.getitem(key) for key in keys))

    for run in (sync, asyncio.run):
        with reads_planned():
            found = run(read_all(ours))
        for one, other in zip(found, run(read_all(own)), strict=True):
            assert_same_bits(np.asarray(one), np.asarray(other))
