"""Dtypes that are no numbers: everything that zarr-python can store is read as zarr-python reads it."""

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_values
from helpers.data.corpus import NUMERIC_DTYPES, counting, write
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.dtype import VariableLengthBytes, data_type_registry
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.read import read_points, stored_array

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.both_ways,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

SHAPE = (7, 5)
WORDS = ["", "a", "größe", "x" * 40, "日本", "nul\0inside", "\N{GRINNING FACE}"]


def repeated(values, dtype):
    return np.resize(np.array(values, dtype), SHAPE)


def structured(*fields):
    return np.array([tuple(number for _ in fields) for number in range(35)], [*fields]).reshape(SHAPE)


VALUES = {
    "text": repeated(WORDS, np.dtypes.StringDType()),
    "text of fixed length": repeated(WORDS, "<U5"),
    "big-endian text": repeated(WORDS, ">U5"),
    "bytes": repeated([b"", b"ab", b"\0\1"], object),
    "bytes of fixed length": repeated([b"", b"ab", b"\1"], "S4"),
    "raw bytes": counting(SHAPE, "<u4").view("V4"),
    "time": counting(SHAPE, "<i8").view("<M8[ns]"),
    "time in tens of days": counting(SHAPE, "<i8").view("<M8[10D]"),
    "big-endian time": counting(SHAPE, ">i8").view(">M8[s]"),
    "time span": counting(SHAPE, "<i8").view("<m8[us]"),
    "big-endian time span": counting(SHAPE, ">i8").view(">m8[h]"),
    "structure": structured(("a", "<i4"), ("b", "<f8")),
    "structure of all sorts": structured(("u", "<U3"), ("s", "S2"), ("c", "<c8"), ("flag", "?"), ("f", ">f2")),
    "structure of structures": np.array(
        [((number, number / 2), -number) for number in range(35)], [("n", [("x", "u1"), ("y", "<f4")]), ("z", "i1")]
    ).reshape(SHAPE),
    "bool": counting(SHAPE) % 3 == 0,
    "complex": counting(SHAPE, ">c16") * (1 - 2j),
    "integer": counting(SHAPE, ">u2"),
}
LAYOUTS = {
    "v3": {"chunks": (2, 3)},
    "sharded": {"chunks": (2, 3), "shards": (4, 3)},
    "v2": {"chunks": (2, 3), "zarr_format": 2},
    "v2, order F": {"chunks": (2, 3), "zarr_format": 2, "order": "F"},
}
SELECTIONS = [
    (slice(None), slice(None)),
    (0, -1),
    (3, slice(None)),
    (slice(None, None, -2), [4, 0, 0]),
    (np.arange(7) % 2 == 0, slice(0)),
    ([1, 1, 2], [0, 3, 3]),
]


def create(data, **keywords):
    dtype = VariableLengthBytes() if data.dtype == object else data.dtype
    array = zarr.create_array(MemoryStore(), shape=data.shape, dtype=dtype, **keywords)
    # The byte order of format 3 is the codec's: zarr-python gives elements in the machine's.
    return array, data.astype(array.dtype)


def picked(data, selection):
    """Index axis by axis, with NumPy; an element is an array without axes."""
    columns = data[(slice(None), selection[1], ...)]
    return columns[(selection[0], ...)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VALUES)
def test_any_dtype_is_what_zarr_gives(name, layout):
    array, data = create(VALUES[name], **LAYOUTS[layout])
    array[...] = data

    assert_same_values(array[...], data)
    for selection in SELECTIONS:
        assert_same_values(read_array(array, selection, device="host"), picked(data, selection))
    points = np.array([[0, 6, -1], [0, 0, 3]]), np.array([4, 2, 0])
    assert_same_values(read_points(stored_array(array), points, decoder_for("host")), data[points])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VALUES)
def test_missing_chunk_of_any_dtype_is_what_zarr_gives(name, layout):
    array, data = create(VALUES[name], **LAYOUTS[layout])
    array[2:4, :3] = data[2:4, :3]

    assert_same_values(read_array(array, device="host"), array[...])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", VALUES)
def test_any_dtype_without_axes_is_what_zarr_gives(name, zarr_format):
    array, data = create(VALUES[name][1, 1, ...], zarr_format=zarr_format)
    array[...] = data[()]

    assert_same_values(read_array(array, device="host"), data)


@given(data=st.data())
def test_text_of_any_kind_in_any_selection(data):
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
    n = data.draw(st.integers(1, 12))
    words = np.array(data.draw(st.lists(text, min_size=n, max_size=n)), np.dtypes.StringDType())
    layout = data.draw(st.sampled_from([{"chunks": (3,)}, {"chunks": (2,), "shards": (4,)}]))
    array = write(MemoryStore(), words, **layout, zarr_format=3)
    wanted = data.draw(st.slices(n) | st.lists(st.integers(-n, n - 1)).map(lambda at: np.array(at, int)))

    assert_same_values(read_array(array, wanted, device="host"), words[wanted])


def test_no_dtype_of_zarr_is_left_out():
    """A dtype that zarr-python learns is to be added to the table above."""
    kinds = {np.dtype(data.dtype).kind for data in VALUES.values()}

    assert kinds == set("TUOSVMmbcu")
    assert set(data_type_registry.contents) - {np.dtype(name).name for name in NUMERIC_DTYPES} == {
        "fixed_length_utf32",
        "string",
        "raw_bytes",
        "null_terminated_bytes",
        "variable_length_bytes",
        "struct",
        "numpy.datetime64",
        "numpy.timedelta64",
    }
