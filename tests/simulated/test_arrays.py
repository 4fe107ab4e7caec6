"""Arrays of the simulated device compute as NumPy's, refuse what CuPy's refuse, and know only the consumer's stream."""

import gc

import numpy as np
import pytest
import xarray as xr
from helpers.simulated.array import SimulatedArray
from helpers.simulated.programs import BYTE, N, simulated

from xarray_gpuzarr.plan.selection import outer_selection


def filled(device):
    """Return an array of 0..11 in the shape (3, 4), filled in the order of the consumer's stream."""
    array = device.empty((3, 4), np.dtype("i4"), device.consumer_stream())
    array[...] = device.place(np.arange(12, dtype="i4").reshape(3, 4))
    return array


EXPRESSIONS = {
    "view": lambda a: a[1:, ::-2],
    "element": lambda a: a[2, 1:2],
    "gather": lambda a: a[np.array([2, 0, 0])][:, 1],
    "reshape": lambda a: a.reshape(2, 6).T,
    "astype": lambda a: a.astype("f8") * 0.5,
    "function": lambda a: np.concatenate([a, a + 1], axis=1),
    "reduction": lambda a: a.sum(axis=0),
    "nothing": lambda a: a[:0, :2],
    "restore": lambda a: outer_selection(([2, 0, 1], slice(None, None, -1)), (3, 4)).restore(a),
    "restore a number": lambda a: outer_selection((1, [3, 1]), (3, 4)).restore(a[1:2]),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_array_does_as_numpy_does(name):
    result = EXPRESSIONS[name](filled(simulated()))
    expected = EXPRESSIONS[name](np.arange(12, dtype="i4").reshape(3, 4))
    assert isinstance(result, SimulatedArray)
    np.testing.assert_array_equal(result.get(), expected, strict=True)
    for attribute in ("shape", "dtype", "ndim", "size", "nbytes"):
        assert getattr(result, attribute) == getattr(expected, attribute)


@pytest.mark.parametrize(
    "wrong", [np.asarray, np.arange(4).__add__, lambda a: a + np.arange(4), lambda a: a.__setitem__(0, np.arange(4))]
)
def test_an_array_refuses_numpy(wrong):
    with pytest.raises(TypeError):
        wrong(filled(simulated()))


def test_there_are_no_arrays_of_times():
    device = simulated()
    with pytest.raises(AssertionError, match="no arrays of datetime64"):
        device.empty((1,), np.dtype("M8[s]"), device.consumer_stream())


def test_views_are_of_the_same_memory_and_keep_it():
    device = simulated()
    array = filled(device)
    view = array[1:].reshape(8)
    assert device.address(view) == device.address(array) + 16
    array += 1
    array[1, 0] = 99
    del array
    gc.collect()
    assert view.get().tolist() == [99, 6, 7, 8, 9, 10, 11, 12]
    del view
    device.check()
    assert device.memory_nbytes()[0] == 1 << 20


def test_xarray_works_on_it():
    variable = xr.Variable(("y", "x"), filled(simulated())).isel(y=[2, 0]).transpose() + 1
    assert isinstance(variable.data, SimulatedArray)
    assert variable.data.get().tolist() == [[9, 1], [10, 2], [11, 3], [12, 4]]


def test_get_waits_for_the_stream_that_its_thread_consumes_on():
    device = simulated()
    mine = device.stream()
    array = device.empty((N,), BYTE, mine)
    pinned = device.allocate_pinned(N)
    pinned.array[:] = 3
    device.upload(device.address(array), pinned.array, mine)
    with mine:
        assert device.consumer_stream() is mine
        assert (array.get() == 3).all()
    assert device.consumer_stream().handle == 0
