"""Chunks that the compiled loops decode and place: the bits that NumPy's indexing gives, wherever they are to go."""

import os
from typing import Any

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import BLOSC_CNAMES, SHUFFLES, counting, edge_values, write
from helpers.data.stacks import numpy_stack, stacks
from helpers.every_pair import usually
from helpers.loops import rows_taken
from helpers.profiles import at_least
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.buffer import cpu
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array, zarr_pipeline
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read import read_target, stored_array

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

COMPRESSORS: dict[str, Any] = {
    "none": None,
    "zstd": ZstdCodec(),
    "zstd-checksum": ZstdCodec(checksum=True),
    "zstd+crc32c": [ZstdCodec(), Crc32cCodec()],
    "crc32c": Crc32cCodec(),
    "gzip": GzipCodec(level=1),
    "zlib": zn.Zlib(),
    "lz4": zn.LZ4(),
} | {
    f"blosc-{cname}-{shuffle}": BloscCodec(cname=cname, shuffle=shuffle, typesize=4)
    for cname in BLOSC_CNAMES
    for shuffle in SHUFFLES
}
DTYPES = ("?", "u1", "i2", "f2", "i4", "f4", "f8", "c8", "c16")
"""Elements of 1, 2, 4, 8 and 16 bytes; zarr-python has no numbers of other lengths, and text is read by it alone."""
WRITTEN_WHOLE = {"config": {"write_empty_chunks": True}}
"""Settings under which chunks that are all fill value are written."""
CANARY = 0x5A
_IS_SANITIZED = os.environ.get("XARRAY_GPUZARR_SANITIZE") == "1"
more = settings(max_examples=usually(8, full=30)) if _IS_SANITIZED else at_least(40, full=120)
"""Reads of a few chunks take 5 ms, with sanitizers ten times that."""


# ---- each kind of codec and of element


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("codec", COMPRESSORS)
def test_every_codec(local, codec, sharded):
    data = counting((40, 36))
    layout = {"shards": (20, 36)} if sharded else {}
    array = write(local, data, chunks=(5, 9), compressors=COMPRESSORS[codec], **layout)

    with rows_taken() as taken:
        assert_same_bits(read_array(array, (slice(1, 39), slice(2, 35, 3)), device="host"), data[1:39, 2:35:3])

    assert taken.n_rows == 32


def test_the_largest_number_of_axes(memory):
    """NumPy has 64, of which a stack takes one."""
    shape = (*[1] * 59, 2, 1, 2, 4)
    data = counting(shape)
    array = write(memory, data, chunks=(*[1] * 61, 2, 2), compressors=None, **WRITTEN_WHOLE)
    axes = [slice(None)] * 62 + [slice(1, 4)]
    stored = stored_array(array)

    with rows_taken() as taken:
        assert_same_bits(
            read_target(stored, stored.spec, stack_target(axes, 2, stored.spec.grid), decoder_for("host")),
            np.stack([data[..., 1:4]] * 2),
        )

    assert taken.n_rows == 4


# ---- any array, any selection, any memory


@st.composite
def layouts(draw: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """(elements, settings to write them with): partial edges, shards or none, any order of axes."""
    shape = tuple(draw(st.lists(st.integers(1, 9) | st.just(7), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, min(n + 1, 4))) for n in shape)
    keywords: dict[str, Any] = {"chunks": chunks, "compressors": COMPRESSORS[draw(st.sampled_from([*COMPRESSORS]))]}
    if draw(st.booleans()):
        keywords["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunks)
    if draw(st.booleans()):
        keywords["filters"] = TransposeCodec(order=draw(st.permutations(range(len(shape)))))
    data = edge_values(draw(st.sampled_from(DTYPES)), shape, draw(st.integers(0, 99)))
    return data, keywords | WRITTEN_WHOLE


def slices(length: int) -> st.SearchStrategy[slice]:
    """Any slice that goes forwards, and more often than not one that takes most of an axis."""
    any_slice = st.slices(length).map(lambda s: slice(s.start, s.stop, abs(s.step or 1)))
    most = st.builds(slice, st.integers(0, length // 3), st.integers(length // 2, length), st.integers(1, 3))
    return most | most | any_slice


class Room:
    """An array whose elements lie apart, in any order of axes, forwards or backwards, within memory that is watched."""

    def __init__(self, draw: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        order = draw(st.permutations(range(len(shape))), label="order of axes")
        is_dense = draw(st.booleans(), label="nothing between elements")
        steps = [1 if is_dense else draw(st.sampled_from([1, 1, 2, -1, -3]), label="step") for _ in shape]
        is_field = draw(st.booleans(), label="elements that begin anywhere")
        held = np.dtype([("before", "V1"), ("element", dtype), ("after", "V2")]) if is_field else dtype
        margin = draw(st.sampled_from([0, 0, 1]), label="margin")  # without one, axes may be one run of memory
        outer = [abs(steps[axis]) * shape[axis] + 2 * margin for axis in order]
        key = tuple(_within(step, n, margin) for step, n in zip(steps, shape, strict=True))

        def elements(memory: np.ndarray) -> np.ndarray:
            held_elements = memory.view(held).reshape(outer)
            return (held_elements["element"] if is_field else held_elements).transpose(np.argsort(order))[key]

        self._memory = np.full(int(np.prod(outer)) * held.itemsize, CANARY, np.uint8)
        self._elements = elements
        self.array = elements(self._memory)
        assert self.array.shape == shape

    def check(self, expected: np.ndarray) -> None:
        """The elements are those, and nothing else was written."""
        wanted = np.full_like(self._memory, CANARY)
        self._elements(wanted)[...] = expected
        np.testing.assert_array_equal(self._memory, wanted)


def _within(step: int, n: int, margin: int) -> slice:
    """Return a slice of `n` elements of an axis of ``abs(step) * n + 2 * margin``."""
    first = margin if step > 0 else margin + (n - 1) * -step
    stop = first + n * step
    return slice(first, stop if stop >= 0 else None, step) if n else slice(0, 0)


@pytest.mark.parametrize("kind", ["box", "stack"])
def test_boxes_and_stacks_are_those_of_numpy(kind):
    n_taken = []

    @more
    @given(layout=layouts(), data=st.data())
    def check(layout, data):
        elements, keywords = layout
        stored = stored_array(write(MemoryStore(), elements, **keywords))
        if kind == "box":
            key = tuple(data.draw(slices(n), label="selection") for n in elements.shape)
            target = box_target(outer_selection(key, elements.shape), stored.spec.grid)
            expected = elements[key]
        else:
            crops = data.draw(stacks(elements.shape), label="crops")
            target, expected = stack_target(*crops, stored.spec.grid), numpy_stack(elements, *crops)
        room = Room(data.draw, target.shape, elements.dtype)

        with rows_taken() as taken:
            found = read_target(stored, stored.spec, target, decoder_for("host"), room.array)

        n_taken.append(taken.n_rows)
        assert np.shares_memory(found, room.array) or not found.size
        room.check(expected)

    check()
    assert sum(n_taken) >= len(n_taken)


@given(layout=layouts(), order=st.sampled_from("CF"), data=st.data())
@settings(max_examples=usually(6, full=10) if _IS_SANITIZED else 30)
def test_reads_of_zarr_into_memory_of_the_caller(layout, order, data):
    elements, keywords = layout
    store = MemoryStore()
    write(store, elements, **keywords)
    key = tuple(data.draw(slices(n), label="selection") for n in elements.shape)
    room = Room(data.draw, elements[key].shape, elements.dtype)
    with zarr_pipeline():
        array = zarr.open_array(store, mode="r", config={"order": order})

    found = array.get_basic_selection(key)
    array.get_basic_selection(key, out=cpu.NDBuffer(room.array))

    assert_same_bits(np.ascontiguousarray(found), elements[key])
    room.check(elements[key])
