"""What stands for CuPy's arrays on a client without a GPU: NumPy's values, CuPy's manners."""

import pickle

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.base import tokenize
from helpers.data.datasets import COMMON_WORK, write_weather
from zarr.storage import MemoryStore

from xarray_gpuzarr import DeviceUnavailableError, read_array
from xarray_gpuzarr.decoders.workers.decoder import CupyStandIn

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated")

VALUES = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def array():
    return CupyStandIn(VALUES)


@pytest.mark.parametrize(
    "compute",
    [
        lambda a: a + 1,
        lambda a: 2 - a,
        np.sqrt,
        lambda a: np.add(a, a, dtype="f4"),
        lambda a: a.sum(axis=0),
        lambda a: np.nanmean(a, axis=1, keepdims=True),
        lambda a: np.concatenate([a, a], axis=1),
        lambda a: np.where(a > 3, a, 0),
        lambda a: a[1:, ::2],
        lambda a: a[..., None],
        lambda a: a.astype("i2").T,
        lambda a: a.reshape(4, 3).max(),
        lambda a: np.full_like(a, 7),
        lambda a: np.stack(list(np.split(a, 2, axis=1))),
        lambda a: np.cumsum(a, axis=0),
        lambda a: np.asarray([1, 2], like=a),
    ],
)
def test_computes_as_numpy_and_stays_what_it_is(array, compute):
    result, expected = compute(array), compute(VALUES)

    assert type(result) is CupyStandIn
    np.testing.assert_array_equal(result.get(), expected, strict=True)


def test_becomes_no_numpy_array_unasked(array):
    with pytest.raises(TypeError, match="stands for a CuPy array"):
        np.array(array)


def test_has_no_attributes_that_numpy_lacks(array):
    assert (array.shape, array.ndim, array.size, array.nbytes, len(array)) == ((3, 4), 2, 12, 96, 3)
    assert not hasattr(array, "dask")


def test_without_a_gpu_it_is_unpacked_as_it_was(array):
    again = pickle.loads(pickle.dumps(array))

    assert type(again) is CupyStandIn
    np.testing.assert_array_equal(again.get(), VALUES)


def test_equal_ones_have_equal_tokens(array):
    assert tokenize(array) == tokenize(CupyStandIn(VALUES.copy()))
    assert tokenize(array) != tokenize(CupyStandIn(VALUES + 1))
    differ_in_the_middle = np.arange(5000) == 2500
    assert tokenize(CupyStandIn(np.zeros(5000))) != tokenize(CupyStandIn(differ_in_the_middle.astype("f8")))


def test_dask_knows_it_for_a_duck_array(array):
    made = da.from_array(array, chunks=2, asarray=False)

    assert type((made + 1).sum(axis=0)._meta) is CupyStandIn


@pytest.mark.parametrize("work", COMMON_WORK)
def test_graphs_are_built_without_a_gpu(work):
    store = MemoryStore()
    write_weather(store)
    ds = xr.open_dataset(store, engine="gpuzarr", chunks={}, device="workers")

    with xr.set_options(use_flox=False):
        host = COMMON_WORK[work](ds).gpuzarr.to_host()

    arrays = host.data_vars.values() if isinstance(host, xr.Dataset) else [host]
    assert {type(array.data._meta) for array in arrays} == {np.ndarray}


def test_reading_without_a_gpu_says_what_is_missing():
    array = zarr.create_array(MemoryStore(), data=np.arange(4))

    with pytest.raises(DeviceUnavailableError, match="libcuda"):
        read_array(array, device="workers")
