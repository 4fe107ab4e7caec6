"""Which samples there are, and in which order ranks and processes read them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.training.order import Order, draw_epoch
from xarray_gpuzarr.training.samples import Table, choose_samples

NO_RANDOM = np.random.default_rng(0)


def order(**changes):
    usual = {"batch": 3, "shuffle": True, "window": None, "seed": 0, "drop_last": False, "rank": 0, "world_size": 1}
    return Order(**usual | changes)


def table(n):
    """Samples whose number is where they begin."""
    return Table(start=np.arange(n)[:, None])


def shards_of(length):
    return lambda start: start[:, 0] // length


def drawn(n, epoch=0, shard=4, **changes):
    """Return the numbers of the samples of an epoch."""
    return draw_epoch(table(n), order(**changes), epoch, shards_of(shard)).sample.tolist()


def lattice(lengths, sizes, stride=None):
    dims = "abc"[: len(lengths)]
    of_dims = (dict(zip(dims, numbers, strict=True)) for numbers in (lengths, sizes))
    samples = choose_samples(*of_dims, stride=stride, random=None, positions=None)
    return samples.starts(NO_RANDOM).first_elements(np.arange(samples.n_samples)).tolist()


def test_lattice_lies_in_c_order_and_has_all_samples_that_fit():
    assert lattice((7, 4), (3, 2)) == [[0, 0], [0, 2], [3, 0], [3, 2]]
    assert lattice((7,), (3,), {"a": 2}) == [[0], [2], [4]]
    assert lattice((6,), (3,), {"a": 1}) == [[0], [1], [2], [3]]
    assert lattice((7, 2), (3, 2), {"a": 4}) == [[0, 0], [4, 0]]


def test_random_boxes_are_anew_in_each_epoch_and_anywhere():
    samples = choose_samples({"a": 5, "b": 3}, {"a": 3, "b": 3}, stride=None, random=3000, positions=None)
    first, again, second = (
        draw_epoch(samples, order(shuffle=False), epoch, shards_of(1)).starts.first_elements(np.arange(3000))
        for epoch in (0, 0, 1)
    )

    assert (first == again).all()
    assert (first != second).any()
    counted = Counter(map(tuple, first.tolist()))
    assert counted.keys() == {(0, 0), (1, 0), (2, 0)}
    assert min(counted.values()) > 900  # of 1000 on average; the standard deviation is 26


def test_unshuffled_samples_come_in_order():
    assert drawn(7, shuffle=False) == list(range(7))
    assert drawn(7, shuffle=False, window=6) == list(range(7))
    assert drawn(7, shuffle=False, rank=1, world_size=2) == [1, 3, 5]


def test_each_shuffled_epoch_is_another_permutation():
    epochs = [drawn(50, epoch) for epoch in range(4)]

    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert drawn(50, 2) == epochs[2]
    assert drawn(50, 2, seed=1) != epochs[2]


def test_order_of_two_samples_is_open():
    orders = Counter(tuple(drawn(3, epoch)) for epoch in range(3000))

    assert len(orders) == 6
    assert min(orders.values()) > 390  # of 500 on average; five standard deviations are 102


def test_windows_hold_samples_of_few_shards():
    sample = np.array(drawn(64, window=16, shard=8))

    windows = sample.reshape(-1, 16)
    assert [len(np.unique(window // 8)) for window in windows] == [2, 2, 2, 2]
    assert any(window.tolist() != sorted(window.tolist()) for window in windows)
    assert (np.diff(windows // 8, axis=1) != 0).sum() > 8  # samples of the two shards take turns
    assert (windows[:, 0] // 16).tolist() != [0, 1, 2, 3]


def batches_of(epoch, n_batches):
    """Return the samples of each batch, as reads give them."""
    per_read, batch = epoch.order.samples_per_read, epoch.order.batch
    found = []
    for number in range(-(-n_batches * batch // per_read)):
        start = epoch.starts_of_read(number)[:, 0].tolist()
        found += [start[i : i + batch] for i in range(0, len(start), batch)]
    return found


@given(
    n=st.integers(1, 60),
    usual=st.fixed_dictionaries(
        {
            "batch": st.integers(1, 7),
            "shuffle": st.booleans(),
            "seed": st.integers(0, 3),
            "drop_last": st.booleans(),
            "world_size": st.integers(1, 5),
            "n_parts": st.integers(1, 4),
        }
    ),
    windows=st.none() | st.integers(1, 5),
    shard=st.integers(1, 9),
    epoch=st.integers(0, 2),
)
def test_ranks_and_parts_share_an_epoch(n, usual, windows, shard, epoch):
    batch, world_size = usual["batch"], usual["world_size"]
    found, n_batches = [], []
    for rank in range(world_size):
        n_before = len(found)
        for part in range(usual["n_parts"]):
            of_part = Order(**usual, window=windows and windows * batch, rank=rank, part=part)
            own = batches_of(draw_epoch(table(n), of_part, epoch, shards_of(shard)), of_part.n_batches(n))
            assert len(own) == of_part.n_batches(n)
            found += own
        n_batches.append(len(found) - n_before)

    samples = [sample for own in found for sample in own]
    assert len(samples) == len(set(samples))
    assert all(found)
    if usual["drop_last"]:
        assert {len(own) for own in found} <= {batch}
        assert set(n_batches) == {n // world_size // batch}
    else:
        assert sorted(samples) == list(range(n))
        assert max(n_batches) - min(n_batches) <= 1


@pytest.mark.parametrize("changes", [{"seed": 1}, {"rank": 1, "world_size": 2}, {"window": 6}, {"shuffle": False}])
def test_checksum_tells_orders_apart(changes):
    own, other = (draw_epoch(table(40), order(**which), 0, shards_of(4)) for which in ({}, changes))

    assert own.checksum != other.checksum
    assert own.checksum == draw_epoch(table(40), order(), 0, shards_of(4)).checksum


def test_shards_are_looked_up_a_part_of_the_samples_at_a_time(monkeypatch):
    expected = drawn(64, window=16, shard=8)
    monkeypatch.setattr("xarray_gpuzarr.training.order.LOOK_UP_SIZE", 7)

    assert drawn(64, window=16, shard=8) == expected
