"""Numbers of every kind, as they are stored and as CF attributes say: read as xarray's own engine reads them."""

import numpy as np
import pytest
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.packed import Packed, opened, packed_variables, xarray_can_decode
from helpers.effort import at_least
from hypothesis import assume, given
from zarr.codecs import BytesCodec

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore::RuntimeWarning", "ignore::UserWarning"),
]

thorough = at_least(48, full=200)


@pytest.mark.also_with("host-i2-true-big-plain", "simulated-i2-true-big-plain")
@pytest.mark.parametrize("attrs", [{}, {"scale_factor": 0.5}, {"missing_value": 2}], ids=["plain", "scaled", "masked"])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("dtype", "unsigned"),
    [(d, "true") for d in ("i1", "i2", "i4", "i8")] + [(d, "false") for d in ("u1", "u2", "u4", "u8")],
)
def test_integers_of_the_other_sign_keep_their_byte_order(dtype, unsigned, endian, attrs):
    data = np.array([0, 1, 2, 3, 100, 127], dtype)
    layout = {"chunks": (2,), "serializer": BytesCodec(endian=endian)}
    packed = Packed(data=data, zarr_format=3, attrs={"_Unsigned": unsigned, **attrs}, fill_value=1, layout=layout)

    assert_read_alike(packed.write())


@thorough
@given(packed_variables())
def test_any_packed_variable(packed):
    store = packed.write()
    assume(xarray_can_decode(store))

    assert_read_alike(store)


def assert_read_alike(store):
    """Compare all that both engines make of a store, lazily and with dask."""
    ours, stock, tasks = (
        opened(store, "gpuzarr"),
        opened(store, "zarr"),
        opened(store, "gpuzarr", chunks={}),
    )
    assert_same_dataset(ours, stock)
    assert_same_values(tasks["v"].values, stock["v"].values)
