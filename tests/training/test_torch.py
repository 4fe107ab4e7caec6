"""Batches in PyTorch's `DataLoader`, as tensors; by workers as by one process."""

import numpy as np
import pytest
from helpers.loading import N_TIMES, epochs_of, firsts, import_or_skip, written

from xarray_gpuzarr import batches

torch = import_or_skip("torch")

from xarray_gpuzarr.torch import IterableBatches, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*multi-threaded, use of fork")


@pytest.fixture
def ds(tmp_path):
    return written(tmp_path)


def loader(batches, n_workers, **keywords):
    return torch.utils.data.DataLoader(IterableBatches(batches), batch_size=None, num_workers=n_workers, **keywords)


def test_batches_are_tensors_of_numeric_variables(ds):
    (first, *_) = loader(batches(ds, {"time": 2}, 3), 0)

    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in first.items()} == {
        "a": ((3, 2, 3, 4), torch.float64),
        "b": ((3, 2), torch.int32),
    }
    assert first["b"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_tensors_share_the_memory_of_arrays(ds):
    (batch, *_) = batches(ds, {"time": 2}, 3)
    shared = tensors(batch)["a"]
    batch.a.data[0, 0, 0, 0] = 77

    assert shared[0, 0, 0, 0] == 77


def test_variables_that_were_reversed_become_tensors(ds):
    land, single = ("y", [0.0, 1.0, 2.0]), (("time", "one"), np.arange(24.0)[:, None])
    turned = ds.assign(land=land, single=single).isel(y=slice(None, None, -1), one=slice(None, None, -1))

    (batch, *_) = loader(batches(turned, {"time": 2}, 3), 0)

    assert batch["land"].tolist() == [2.0, 1.0, 0.0]
    assert batch["single"].tolist() == [[[0.0], [1.0]], [[2.0], [3.0]], [[4.0], [5.0]]]
    assert all(tensor.is_contiguous() for tensor in batch.values())


@pytest.mark.parametrize(("n_workers", "context"), [(0, None), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_workers_give_the_batches_of_one_process(ds, n_workers, context):
    loading = loader(batches(ds, {"time": 2}, 3, shuffle=True), n_workers, multiprocessing_context=context)

    assert len(loading) == 4
    assert firsts(loading) == epochs_of(ds, 1, shuffle=True)[0]


def test_workers_share_windows(ds):
    loading = loader(batches(ds, {"time": 2}, 2, shuffle=True, window=900), 2)

    found = [first for batch in firsts(loading) for first in batch]

    assert sorted(found) == [12.0 * time for time in range(0, N_TIMES, 2)]
