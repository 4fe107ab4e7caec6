"""Arrays of the simulated device compute as NumPy's, refuse what CuPy's refuse, and know only the consumer's stream."""

import gc

import numpy as np
import pytest
from helpers.simulated.programs import BYTE, N, simulated


def filled(device):
    """Return an array of 0..11 in the shape (3, 4), filled in the order of the consumer's stream."""
    array = device.empty((3, 4), np.dtype("i4"), device.consumer_stream())
    array[...] = device.place(np.arange(12, dtype="i4").reshape(3, 4))
    return array


@pytest.mark.parametrize(
    "wrong", [np.asarray, np.arange(4).__add__, lambda a: a + np.arange(4), lambda a: a.__setitem__(0, np.arange(4))]
)
def test_an_array_refuses_numpy(wrong):
    with pytest.raises(TypeError):
        wrong(filled(simulated()))


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
