"""distributed sends and spills CuPy arrays: asked of the real CuPy without a GPU, by `try-gpu-environments`.

Bringing elements to the host and back needs a GPU: `tests/on_gpu/test_local_cuda_cluster.py`.
"""

import subprocess
import sys

import cupy
import pytest
from distributed.protocol import serialize
from distributed.protocol.cuda import cuda_deserialize
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from xarray_gpuzarr.cluster import worker


@pytest.fixture
def empty():
    """An array without elements, at no address."""
    memory = cupy.cuda.UnownedMemory(0, 0, None, 0)
    return cupy.ndarray((0, 3), dtype="f4", memptr=cupy.cuda.MemoryPointer(memory, 0))


def test_a_cupy_array_is_serialized_for_another_worker(empty):
    header, frames = serialize(empty, serializers=("cuda",), on_error="raise")

    assert header["sub-header"]["shape"] == (0, 3)
    assert header["sub-header"]["typestr"] == "<f4"
    assert [type(frame) for frame in frames] == [cupy.ndarray]


def test_spilling_and_clients_find_how_cupy_arrays_are_written_and_read():
    for family in (dask_serialize, dask_deserialize, cuda_deserialize):
        assert "distributed.protocol.cupy" in family.dispatch(cupy.ndarray).__module__


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import cupy
from xarray_gpuzarr.cluster.worker import why_not_serializable
print(why_not_serializable())
"""


def test_workers_say_what_is_missing_before_it_matters():
    assert worker.why_not_serializable() is None

    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)

    assert "numba" in done.stdout
