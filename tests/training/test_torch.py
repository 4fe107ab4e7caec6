"""Batches in PyTorch's `DataLoader`; runs where torch is installed."""

import os
import signal
import sys

import numpy as np
import pytest
import xarray as xr
from helpers.data.datasets import open_ours

from xarray_gpuzarr import OptionError, batches

torch = pytest.importorskip("torch")

from xarray_gpuzarr.torch import IterableBatches, tensors  # noqa: E402

N_TIMES = 24


@pytest.fixture
def ds(tmp_path):
    data = np.arange(N_TIMES * 12.0).reshape(N_TIMES, 3, 4)
    written = xr.Dataset(
        {
            "a": (("time", "y", "x"), data),
            "b": ("time", np.arange(N_TIMES, dtype=">i4")),
            "text": ("time", ["x"] * N_TIMES),
        },
        coords={"time": np.arange(N_TIMES)},
    )
    written.to_zarr(tmp_path / "s.zarr", encoding={"a": {"chunks": (1, 3, 4)}}, consolidated=False)
    return open_ours(tmp_path / "s.zarr", consolidated=False)


def loader(batches, n_workers, **keywords):
    return torch.utils.data.DataLoader(IterableBatches(batches), batch_size=None, num_workers=n_workers, **keywords)


def firsts(batches):
    return [batch["a"][:, 0, 0, 0].tolist() for batch in batches]


def expected(ds, **keywords):
    return [batch.a.values[:, 0, 0, 0].tolist() for batch in batches(ds, {"time": 2}, 3, **keywords)]


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


def test_dlpack_gives_the_values(ds):
    for batch in batches(ds, {"time": 2}, 3, shuffle=True, window=1000):
        assert torch.from_dlpack(batch.a.data).tolist() == batch.a.values.tolist()


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_workers_give_the_batches_of_one_process(ds, n_workers, context):
    keywords = {"multiprocessing_context": context} if n_workers else {}
    loading = loader(batches(ds, {"time": 2}, 3, shuffle=True), n_workers, **keywords)

    assert len(loading) == 4
    assert firsts(loading) == expected(ds, shuffle=True)


@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_of_workers_is_the_next_one(ds, persistent):
    whole = batches(ds, {"time": 2}, 3, shuffle=True)
    loading = loader(batches(ds, {"time": 2}, 3, shuffle=True), 2, persistent_workers=persistent)

    for _ in range(3):
        assert firsts(loading) == [batch.a.values[:, 0, 0, 0].tolist() for batch in whole]


def test_workers_share_windows(ds):
    loading = loader(batches(ds, {"time": 2}, 2, shuffle=True, window=900), 2)

    found = [first for batch in firsts(loading) for first in batch]

    assert sorted(found) == [12.0 * time for time in range(0, N_TIMES, 2)]


def test_a_state_of_one_process_goes_on(ds):
    loading = loader(batches(ds, {"time": 2}, 3, shuffle=True), 0)
    for _ in zip(range(2), loading, strict=False):
        pass
    state = loading.dataset.state_dict()

    again = loader(batches(ds, {"time": 2}, 3, shuffle=True), 0)
    again.dataset.load_state_dict(state)

    assert firsts(again) == expected(ds, shuffle=True)[2:]


def test_the_state_of_workers_is_not_known_here(ds):
    loading = loader(batches(ds, {"time": 2}, 3), 2)
    list(loading)

    with pytest.raises(OptionError, match="worker processes read"):
        loading.dataset.state_dict()


def test_workers_refuse_to_begin_in_the_middle_of_an_epoch(ds):
    middle = batches(ds, {"time": 2}, 3)
    next(iter(middle))
    again = batches(ds, {"time": 2}, 3)
    again.load_state_dict(middle.state_dict())

    with pytest.raises(RuntimeError, match="OptionError: a part of an epoch that has begun"):
        list(loader(again, 2))


def test_an_epoch_may_be_chosen(ds):
    whole = batches(ds, {"time": 2}, 3, shuffle=True)
    whole.set_epoch(5)
    loading = loader(batches(ds, {"time": 2}, 3, shuffle=True), 2)
    loading.dataset.set_epoch(5)

    assert firsts(loading) == [batch.a.values[:, 0, 0, 0].tolist() for batch in whole]


def test_ranks_are_those_of_a_process_group(ds, tmp_path):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        loading = batches(ds, {"time": 2}, 3)
        os._exit(0 if (loading._order.rank, loading._order.world_size) == (0, 1) else 3)

    assert "torch.distributed" in sys.modules
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
