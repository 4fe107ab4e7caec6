"""Batches in PyTorch's `DataLoader`: each pass is the next epoch, whoever reads it, when, and however it was left."""

import gc
import itertools
import json
import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
from helpers.every_pair import usually
from helpers.loading import N_TIMES, Late, epochs_of, firsts, import_or_skip, written

from xarray_gpuzarr import CorruptChunkError, OptionError, batches

torch = import_or_skip("torch")

from xarray_gpuzarr.torch import IterableBatches, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*multi-threaded, use of fork")
DRAWN = {"random": 13, "shuffle": True}
METHODS = usually(["fork", "forkserver"], full=["fork", "spawn", "forkserver"])


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    yield written(tmp_path_factory.mktemp("store"))
    gc.collect()  # loaders end their workers


@pytest.fixture(scope="module")
def epochs(ds):
    """The batches of each epoch."""
    return epochs_of(ds, 300, **DRAWN)


@pytest.fixture
def dataset(ds):
    return IterableBatches(batches(ds, {"time": 2}, 3, **DRAWN))


def loader(dataset, n_workers, **keywords):
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=n_workers, **keywords)


@pytest.mark.parametrize("keywords", [{}, {"batch_size": 8}, {"batch_size": 2, "num_workers": 1}], ids=str)
def test_a_loader_that_would_nest_batches_is_refused(dataset, keywords):
    with pytest.raises(OptionError, match="batch_size=None"):
        next(iter(torch.utils.data.DataLoader(dataset, **keywords)))


def test_batches_that_were_not_wrapped_are_refused(ds):
    with pytest.raises(TypeError, match=r"(?s)IterableBatches.*xarray_gpuzarr.torch"):
        next(iter(loader(batches(ds, {"time": 2}, 3), 0)))


def test_stacked_variables_are_one_tensor(ds):
    ds = ds[["a"]].assign(twice=ds.a * 2)
    plain, stacked = (
        list(loader(IterableBatches(batches(ds, {"time": 2}, 3, dtype="float32", **keywords)), 0))
        for keywords in ({}, {"stack": "channel"})
    )
    assert len(plain) == len(stacked) > 1
    for by_name, tensor in zip(plain, stacked, strict=True):
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor, torch.stack(list(by_name.values()), 1))


def some(iterator, n):
    return firsts(batch for _, batch in zip(range(n), iterator, strict=False))


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_begin_late_read_the_epoch_of_their_pass(dataset, epochs, method):
    context = torch.multiprocessing.get_context(method)
    event = context.Event()
    late = loader(dataset, 2, multiprocessing_context=context, worker_init_fn=Late(event, {1}))
    left = iter(late)

    first = some(left, 1)
    second = firsts(loader(dataset, 2))
    event.set()
    rest = firsts(left)
    third = firsts(late)

    assert first + rest == epochs[0]
    assert second == epochs[1]
    assert third == epochs[2]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chosen", [None, 7])
def test_a_pass_that_nobody_has_begun_leaves_others_alone(dataset, epochs, method, chosen):
    context = torch.multiprocessing.get_context(method)
    event = context.Event()
    left = iter(loader(dataset, 2, multiprocessing_context=context, worker_init_fn=Late(event, {0, 1})))
    if chosen is not None:
        dataset.set_epoch(chosen)

    begun = firsts(loader(dataset, 2))
    event.set()
    late = firsts(left)

    assert begun == epochs[chosen or 0]
    assert late == epochs[1 if chosen is None else 0]
    assert firsts(loader(dataset, 1)) == epochs[2 if chosen is None else chosen + 1]


def test_passes_side_by_side_are_two_epochs(dataset, epochs):
    one, other = iter(loader(dataset, 2)), iter(loader(dataset, 3))

    in_turns = [firsts([next(iterator)])[0] for _ in epochs[0] for iterator in (one, other)]

    assert sorted([in_turns[0::2], in_turns[1::2]]) == sorted(epochs[:2])


@pytest.mark.parametrize("seed", range(16))
def test_any_sequence_of_passes(dataset, epochs, seed):
    drawn, kept = random.Random(seed), []
    stays = {n: loader(dataset, n, persistent_workers=True) for n in (1, 3)}
    expected = 0
    for _ in range(7):
        if drawn.random() < 0.3:
            torch.manual_seed(drawn.randrange(2))
        if drawn.random() < 0.3:
            expected = drawn.randrange(200)
            dataset.set_epoch(expected)
        n_workers = drawn.randrange(4)
        loading = stays[n_workers] if n_workers in stays and drawn.random() < 0.5 else loader(dataset, n_workers)
        n = drawn.choice([1, 2, 4, 9])
        kept.append(iter(loading))

        assert some(kept[-1], n) == epochs[expected][:n]
        expected += 1
        if drawn.random() < 0.5:
            kept.clear()


def test_workers_do_not_choose_an_epoch(dataset):
    with pytest.raises(OptionError, match="a worker cannot choose the epoch"):
        list(loader(dataset, 1, worker_init_fn=lambda _: dataset.set_epoch(3)))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_do_not_begin_in_the_middle_of_an_epoch(dataset, epochs, persistent):
    some(iter(loader(dataset, 0)), 2)
    middle = dataset.state_dict()
    loading = loader(dataset, 2, persistent_workers=persistent)
    assert firsts(loading) == epochs[1]

    dataset.load_state_dict(middle)
    with pytest.raises(OptionError, match="cannot continue in the middle of an epoch"):
        list(loading)

    assert firsts(loader(dataset, 0)) == epochs[0][2:]
    assert firsts(loader(dataset, 2)) == epochs[1]


def test_the_state_is_known_again_after_a_pass_without_workers(dataset, epochs):
    firsts(loader(dataset, 2))
    with pytest.raises(OptionError, match="worker processes read"):
        dataset.state_dict()

    some(iter(loader(dataset, 0)), 1)
    state = dataset.state_dict()

    assert (state["epoch"], state["batch"]) == (1, 1)
    firsts(loader(dataset, 1))
    dataset.set_epoch(5)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["batch"]) == (5, 0)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_of_workers_keep_their_class(tmp_path, n_workers):
    dataset = IterableBatches(batches(written(tmp_path), {"time": 2}, 3))
    (tmp_path / "s.zarr" / "a" / "c" / "7" / "0" / "0").write_bytes(b"no frame of any codec")
    loading = iter(loader(dataset, n_workers))
    next(loading)

    with pytest.raises(CorruptChunkError) as raised:
        next(loading)

    assert "chunk (7, 0, 0)" in str(raised.value)
    assert "\n  do:    " in str(raised.value)


@pytest.mark.parametrize(
    ("method", "n_workers"),
    [("fork", 2), ("fork", 3), ("fork", 4), ("forkserver", 3), *usually([], full=[("spawn", 2)])],
)
def test_other_threads_start_processes_while_workers_are_started(dataset, epochs, monkeypatch, method, n_workers):
    """Each worker's number among the children of this process is five more than that of the one before."""
    monkeypatch.setattr(multiprocessing.process, "_process_counter", itertools.count(10**6, 5))

    for number in range(3):
        torch.manual_seed(7)  # all passes have one seed
        assert firsts(loader(dataset, n_workers, multiprocessing_context=method)) == epochs[number]


def test_passes_that_nothing_but_their_workers_tell_apart(dataset, epochs, monkeypatch):
    """Loaders that two threads start at once, with one seed: each has workers whose numbers fit the other's."""
    monkeypatch.setattr(multiprocessing.process, "_process_counter", itertools.cycle([10**6, 10**6 + 1]))

    begun = [iter(loader(dataset, 2, generator=torch.Generator().manual_seed(3))) for _ in range(3)]
    found = [firsts(iterator) for iterator in begun]

    assert sorted(map(epochs.index, found)) == [0, 1, 2]


# ---- tensors


def of(batches, n_workers, **keywords):
    return loader(IterableBatches(batches), n_workers, **keywords)


def test_batches_are_tensors_of_numeric_variables(ds):
    (first, *_) = of(batches(ds, {"time": 2}, 3), 0)

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

    (batch, *_) = of(batches(turned, {"time": 2}, 3), 0)

    assert batch["land"].tolist() == [2.0, 1.0, 0.0]
    assert batch["single"].tolist() == [[[0.0], [1.0]], [[2.0], [3.0]], [[4.0], [5.0]]]
    assert all(tensor.is_contiguous() for tensor in batch.values())


@pytest.mark.parametrize(("n_workers", "context"), [(0, None), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_workers_give_the_batches_of_one_process(ds, n_workers, context):
    loading = of(batches(ds, {"time": 2}, 3, shuffle=True), n_workers, multiprocessing_context=context)

    assert len(loading) == 4
    assert firsts(loading) == epochs_of(ds, 1, shuffle=True)[0]


def test_workers_share_windows(ds):
    loading = of(batches(ds, {"time": 2}, 2, shuffle=True, window=900), 2)

    found = [first for batch in firsts(loading) for first in batch]

    assert sorted(found) == [12.0 * time for time in range(0, N_TIMES, 2)]


# ---- ranks of a process group that was set up after the batches were made: each reads its own, in workers too


PASSES = [(0, None), (2, "fork"), (2, "spawn"), (0, None), (1, "fork")]
"""Number of workers, and how they are started: a rank that was forked off cannot use its parent's ``forkserver``."""


def read_as_rank(rank, dataset, folder):
    """Note down what a rank reads, epoch after epoch, and how many batches it was told of."""
    group = f"file://{folder}/group"
    torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2)
    found = [
        (len(dataset), firsts(loader(dataset, n_workers, multiprocessing_context=method)))
        for n_workers, method in PASSES
    ]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", usually(["fork"], full=["fork", "spawn"]))
def test_every_rank_reads_its_own(tmp_path, method, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    ds = written(tmp_path)
    dataset = IterableBatches(batches(ds, {"time": 2}, 3, shuffle=True))
    of_all = epochs_of(ds, len(PASSES) + 1, shuffle=True)
    before = firsts(loader(dataset, 2, multiprocessing_context="fork"))

    torch.multiprocessing.start_processes(
        read_as_rank, (dataset, str(tmp_path)), nprocs=2, join=True, start_method=method
    )

    assert before == of_all[0]
    for rank in range(2):
        expected = epochs_of(ds, len(PASSES) + 1, shuffle=True, rank=rank, world_size=2)[1:]
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[2, epoch] for epoch in expected]
    assert firsts(loader(dataset, 0)) == of_all[1]
