"""Memory of results begins at a line of the cache; that of dead ones is used again, never that of living ones."""

import gc
import subprocess
import sys

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_values
from helpers.data.corpus import counting, write
from helpers.data.datasets import open_ours
from zarr.storage import MemoryStore

from xarray_gpuzarr.process import host_memory as module
from xarray_gpuzarr.process.host_memory import ResultMemory

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated")

DTYPE = np.dtype("f8")


@pytest.fixture
def memory(monkeypatch):
    """A small one: blocks of 100 to 400 bytes, 1000 bytes kept."""
    monkeypatch.setattr(module, "MIN_REUSED_NBYTES", 100)
    monkeypatch.setattr(module, "MAX_REUSED_NBYTES", 400)
    monkeypatch.setattr(module, "MAX_KEPT_NBYTES", 1000)
    monkeypatch.setattr(module, "result_memory", ResultMemory())
    return module.result_memory


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_of_a_dead_block_is_used_again(memory):
    block = memory.empty((4, 5), DTYPE)
    first = address(block)
    del block

    second, third = memory.empty((10, 2), DTYPE), memory.empty((4, 5), DTYPE)
    assert address(second) == first
    assert not np.shares_memory(second, third)
    assert memory.kept_nbytes == 0


class ClearedBySomeoneElse(ResultMemory):
    """Says once that too much is kept, after another thread has released all of it."""

    says_too_much = True

    @property
    def kept_nbytes(self):
        too_much, self.says_too_much = self.says_too_much, False
        self.clear()
        return 10**9 if too_much else 0


def test_memory_that_another_thread_releases_meanwhile_is_no_error():
    ClearedBySomeoneElse().take_back(np.empty(1, np.uint8))


@pytest.mark.parametrize("view", [lambda b: b[1:], lambda b: b.T, lambda b: b.reshape(-1), memoryview])
def test_memory_of_a_block_that_has_views_is_not(memory, view):
    block = memory.empty((4, 5), DTYPE)
    kept = view(block)
    del block
    gc.collect()

    assert memory.kept_nbytes == 0
    assert not np.shares_memory(memory.empty((4, 5), DTYPE), np.asarray(kept))
    del kept
    assert memory.kept_nbytes == 320


def test_what_is_kept_is_bounded_and_the_latest(memory):
    blocks = [memory.empty((n,), DTYPE) for n in (40, 41, 42, 43, 44)]
    while blocks:
        del blocks[0]

    assert memory.kept_nbytes == 8 * (43 + 44)


@pytest.mark.parametrize("shape", [(40,), (100,)])  # of a length that is kept, and a longer one
def test_what_is_kept_is_let_go_where_memory_lacks(memory, monkeypatch, shape):
    aligned = module.aligned

    def scarce(nbytes):
        if memory.kept_nbytes:
            raise MemoryError
        return aligned(nbytes)

    for block in [memory.empty((n,), DTYPE) for n in (20, 30)]:
        del block
    monkeypatch.setattr(module, "aligned", scarce)
    monkeypatch.setattr(module, "MIN_ALIGNED_NBYTES", 1)
    assert memory.kept_nbytes == 400

    found = memory.empty(shape, DTYPE)

    assert found.shape == shape
    assert memory.kept_nbytes == 0


@pytest.mark.parametrize(("shape", "dtype"), [((12,), "f8"), ((51,), "f8"), ((20,), "O")])
def test_other_lengths_and_objects_are_left_to_numpy(memory, shape, dtype):
    block = memory.empty(shape, np.dtype(dtype))

    assert block.flags.owndata
    del block
    assert memory.kept_nbytes == 0


@pytest.fixture
def array():
    """A dask array of four blocks of 128 bytes, and one of its values."""
    store = MemoryStore()
    zarr.create_group(store)
    write(store, counting((16, 8)), name="a", dimension_names=["y", "x"], chunks=(2, 8), shards=(4, 8))
    return open_ours(store, chunks={}, consolidated=False)["a"].data


def test_blocks_of_a_reduction_take_turns_in_memory(memory, array):
    addresses = set()

    def note(block):
        addresses.add(address(block))
        return block.sum(keepdims=True)

    sums = array.map_blocks(note, chunks=(1, 1), meta=np.empty((0, 0), int)).compute(scheduler="synchronous")

    assert_same_values(np.asarray(sums.sum()), np.asarray(counting((16, 8)).sum()))
    assert len(addresses) == 1


def test_persisted_blocks_keep_their_values(memory, array):
    persisted = array.persist()

    assert array.sum().compute() == counting((16, 8)).sum()
    assert_same_values(persisted.compute(), counting((16, 8)))


def test_a_block_alive_at_exit_is_no_error():
    code = (
        "import numpy as np; from xarray_gpuzarr.process.host_memory import result_memory as b;"
        "kept = b.empty((1 << 20,), np.dtype('f8')); dead = b.empty((1 << 20,), np.dtype('f8')); del dead"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (result.returncode, result.stderr) == (0, "")


LARGE = 2 * module.MIN_ALIGNED_NBYTES


def begins_a_line(array):
    return address(array) % 64 == 0


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, LARGE])
def test_memory_has_its_length_from_the_start_of_a_line_on(nbytes):
    several = [module.aligned(nbytes) for _ in range(9)]

    assert all(begins_a_line(memory) for memory in several)
    assert [memory.shape for memory in several] == [(nbytes,)] * 9


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (LARGE,), (7, LARGE // 7 + 1)])
@pytest.mark.parametrize("dtype", ["u1", ">f8", "c16", "O", "M8[ns]"])
def test_arrays_are_what_numpy_would_give(shape, dtype):
    array = module.empty(shape, np.dtype(dtype))
    expected = np.empty(shape, dtype)

    assert (array.shape, array.strides, array.dtype) == (expected.shape, expected.strides, expected.dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = expected


@pytest.fixture
def variable():
    """A function that opens a stored variable."""
    store = MemoryStore()
    zarr.create_group(store)
    write(store, counting((LARGE // 8, 4)), name="v", chunks=(LARGE // 32, 4), dimension_names=["y", "x"])
    return lambda **options: open_ours(store, consolidated=False, **options)["v"]


@pytest.mark.parametrize("options", [{}, {"chunks": {}}], ids=str)
def test_results_begin_a_line(variable, options):
    assert begins_a_line(variable(**options).load().values)
