"""Groups and trees on slow stores are opened in a few rounds of requests, with what engine="zarr" gives."""

import asyncio
import random
import signal
import threading
from collections import Counter

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_tree
from helpers.data.datasets import open_ours
from helpers.data.trees import many_variables, random_tree, small, tree
from helpers.outcome import outcome
from helpers.stores.fakes import Wrapper, is_data
from helpers.stores.rounds import RoundStore
from zarr.storage import MemoryStore, StorePath

from xarray_gpuzarr.backend import datasets
from xarray_gpuzarr.errors import OptionError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open Zarr store with consolidated"),
    pytest.mark.usefixtures("usual_pipeline"),  # requests are counted where it makes them
]

ENGINES = {"engine": "gpuzarr", "device": "host"}, {"engine": "zarr"}
DEPTH = 3
"""Of `tree`: its arrays lie in groups of groups of the root."""


def open_tree(store, **keywords):
    return xr.open_datatree(store, engine="gpuzarr", device="host", **keywords)


@pytest.fixture
def many_at_once():
    with zarr.config.set({"async.concurrency": 500}):
        yield


@pytest.mark.usefixtures("many_at_once")
@pytest.mark.parametrize("chunks", [{}, None], ids=["dask", "lazy"])
@pytest.mark.parametrize(
    ("is_consolidated", "consolidated", "least", "most"),
    [(True, None, 2, 2), (False, None, 1, DEPTH + 3), (False, False, 1, DEPTH + 2)],
)
def test_a_consolidated_tree_takes_two_rounds_and_another_one_for_each_level(
    zarr_format, is_consolidated, consolidated, least, most, chunks
):
    stored = tree(zarr_format, consolidated=is_consolidated)
    store = RoundStore(stored)

    ours = open_tree(store, consolidated=consolidated, chunks=chunks)

    store.assert_rounds(least, most)
    assert_same_tree(ours, xr.open_datatree(stored, engine="zarr"))


IN_SHARDS = {
    "time": {"chunks": (2,), "shards": (4,), "dtype": "i4"},
    "time_bounds": {"chunks": (2, 2), "shards": (4, 2)},
}


@pytest.mark.usefixtures("many_at_once")
@pytest.mark.parametrize(("zarr_format", "encoding"), [(2, {}), (3, {}), (3, IN_SHARDS)], ids=["2", "3", "shards"])
@pytest.mark.parametrize(("consolidated", "n_rounds"), [(True, 2), (None, 4), (False, 3)])
def test_a_group_takes_as_many_rounds_whatever_its_arrays(zarr_format, encoding, consolidated, n_rounds):
    stored = many_variables(zarr_format, consolidated=bool(consolidated), **encoding)
    store = RoundStore(stored)

    ours = open_ours(store, consolidated=consolidated)

    store.assert_rounds(n_rounds, n_rounds)
    assert_same_dataset(ours, xr.open_dataset(stored, engine="zarr"))


def test_values_are_asked_for_while_other_groups_are_prepared(monkeypatch):
    asked, n_prepared, prepare = threading.Event(), Counter(), datasets._prepare

    class Noting(Wrapper):
        async def get(self, key, prototype, byte_range=None):
            if is_data(key):
                asked.set()
            return await super().get(key, prototype, byte_range)

    def last_waits(store, *others):
        n_prepared["groups"] += 1
        assert n_prepared["groups"] < 10 or asked.wait(20)
        return prepare(store, *others)

    monkeypatch.setattr(datasets, "_prepare", last_waits)

    assert len(list(open_tree(Noting(tree(3, consolidated=True))).subtree)) == n_prepared["groups"] == 10


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])
def test_zarr_makes_each_array_once(zarr_format, consolidated, kind, monkeypatch):
    stored, made, init = kind(tree(zarr_format, consolidated=consolidated)), [], zarr.AsyncArray.__init__
    monkeypatch.setattr(zarr.AsyncArray, "__init__", lambda self, *a, **k: (made.append(self), init(self, *a, **k))[1])

    opened = open_tree(stored, consolidated=consolidated)

    assert len(made) == sum(len(node.to_dataset(inherit=False).variables) for node in opened.subtree)


def test_no_more_requests_are_under_way_than_zarr_is_told(zarr_format):
    store = RoundStore(tree(zarr_format, consolidated=False, n=(2, 1)))

    with zarr.config.set({"async.concurrency": 5}):
        open_tree(store)

    assert max(len(keys) for keys in store.rounds if not any(map(is_data, keys))) <= 5


def test_each_object_below_the_path_of_a_store_is_asked_for_once():
    stored = tree(3, consolidated=False)
    store = RoundStore(stored)
    store.answer_at_once()

    ours = open_tree(StorePath(store, "g1"))

    assert max(Counter(store.asked).values()) == 1
    assert_same_tree(ours, xr.open_datatree(StorePath(stored, "g1"), engine="zarr"))


def test_zarr_may_be_told_that_nothing_bounds_its_requests():
    stored = tree(3, consolidated=True)

    with zarr.config.set({"async.concurrency": None}):
        assert_same_tree(open_tree(Wrapper(stored)), xr.open_datatree(stored, engine="zarr"))


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/*/h0", ["/", "/g0", "/g0/h0", "/g1", "/g1/h0", "/g2", "/g2/h0"]),
        ("/g[02]", ["/", "/g0", "/g2"]),
        ("g1/*", ["/", "/g1", "/g1/h0", "/g1/h1"]),
    ],
)
def test_a_pattern_opens_the_groups_that_match_and_asks_for_nothing_below_others(consolidated, pattern, expected):
    stored = tree(3, consolidated=consolidated)
    store = RoundStore(stored)
    store.answer_at_once()

    ours = open_tree(store, group=pattern)

    whole = xr.open_datatree(stored, engine="zarr")
    assert sorted(ours.groups) == expected
    for path in expected:
        assert_same_dataset(ours[path].to_dataset(inherit=False), whole[path].to_dataset(inherit=False))
    others = tuple(f"{path}/".lstrip("/") for path in whole.groups if path not in expected)
    below = [key for key in store.asked if key.startswith(others) and not key.endswith("/")]
    groups = {f"{path}zarr.json" for path in others}
    assert not set(filter(is_data, below) if pattern[0] != "/" else below) - groups


def test_a_pattern_that_no_group_matches_names_those_that_were_left_out():
    for store in (Wrapper(tree(3, consolidated=False)), tree(3, consolidated=True)):
        with pytest.raises(OptionError, match="no group matches") as caught:
            open_tree(store, group="/g0/no*")

        named = caught.value.found.removeprefix("groups that were looked at: ").split(", ")
        assert {"/", "/g0", "/g0/h0", "/g1"} <= set(named)
        assert len(set(named)) == len(named)


def test_a_group_is_taken_by_its_name_where_that_looks_like_a_pattern():
    stored = MemoryStore()
    small(1).to_zarr(stored, group="a[b]/c", zarr_format=3, consolidated=False)

    for store in (Wrapper(stored), stored):
        assert_same_tree(open_tree(store, group="a[b]"), xr.open_datatree(stored, engine="zarr", group="a[b]"))


class FailingStore(Wrapper):
    """Fails where `fails` says so of a key, or of the path of a listing and a slash."""

    def __init__(self, store, fails):
        super().__init__(store)
        self._fails = fails

    def _with_store(self, store):
        return type(self)(store, self._fails)

    async def get(self, key, prototype, byte_range=None):
        if self._fails(key):
            raise OSError(f"no access to {key}")
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix):
        if self._fails(f"{prefix}/"):
            raise PermissionError(f"no list of {prefix}")
        async for name in super().list_dir(prefix):
            yield name


class UnlistedStore(Wrapper):
    supports_listing = False


def assert_same_outcome(opens, store, is_same=None, **keywords):
    """Compare what both engines give of a store, or their errors, and their warnings; return what the stock one gives.

    Errors are compared by `is_same`, given ours and the stock one, or are equal.
    """
    ours, stock = (outcome(lambda engine=engine: opens(store, **engine, **keywords)) for engine in ENGINES)
    if isinstance(stock[0], tuple) or isinstance(ours[0], tuple):
        assert ours[0] == stock[0] if is_same is None else is_same(ours[0], stock[0])
    elif opens is xr.open_datatree:
        assert_same_tree(ours[0], stock[0])
    elif opens is xr.open_groups:
        assert list(ours[0]) == list(stock[0])
        for path, expected in stock[0].items():
            assert_same_dataset(ours[0][path], expected)
    else:
        assert_same_dataset(ours[0], stock[0])
    assert ours[1] == stock[1]
    return stock[0]


@pytest.mark.every_value
@pytest.mark.parametrize("consolidated", [None, True, False])
@pytest.mark.parametrize(
    "failing",
    [
        *("zarr.json", ".zgroup", ".zmetadata", "g1/zarr.json", "g1/.zgroup", "g1/h0/a/zarr.json", "g1/h0/a/.zarray"),
        *("/", "g1/", "g1/h0/", "g1/h0/time/c/0", "g1/h0/time/0", "g1/h0/begin/.zattrs"),
    ],
)
def test_a_node_that_fails_is_named_as_by_the_stock_engine(zarr_format, consolidated, failing):
    store = FailingStore(tree(zarr_format, consolidated=bool(consolidated)), lambda key: key == failing)

    def names_more(ours, stock):
        return issubclass(ours[0], stock[0]) and stock[1] in ours[1]

    # Values are read by this engine, which names what failed.
    is_same = names_more if is_data(failing) else None
    assert_same_outcome(xr.open_datatree, store, is_same, consolidated=consolidated)


def test_a_store_that_cannot_be_listed_is_refused_as_by_the_stock_engine(zarr_format):
    store = UnlistedStore(tree(zarr_format, consolidated=False))

    assert isinstance(assert_same_outcome(xr.open_datatree, store), tuple)


def test_the_error_of_the_first_group_is_raised():
    stored = MemoryStore()
    root = zarr.open_group(stored, zarr_format=3)
    units = {"units": "furlongs since 2000"}
    root.create_array("t", data=np.arange(3.0), dimension_names=("t",), attributes=units)
    group = root.require_group("g")
    group.create_array("f", data=np.arange(3.0), dimension_names=("x",), attributes={"_FillValue": 5})

    assert isinstance(assert_same_outcome(xr.open_datatree, Wrapper(stored), consolidated=False), tuple)


@pytest.mark.every_value
@pytest.mark.parametrize("seed", range(40))
def test_any_tree_and_any_group_of_it_are_those_of_the_stock_engine(zarr_format, seed):
    rng = random.Random(seed)
    stored, groups = random_tree(rng, zarr_format)
    keywords = {
        "consolidated": rng.choice([None, None, True, False]),
        "zarr_format": rng.choice([None, None, zarr_format]),
        "group": rng.choice([None, *groups, f"/{rng.choice(groups)}"]),
    }
    kind = rng.choice([MemoryStore.with_read_only, Wrapper, Wrapper, lambda store: StorePath(store, groups[1])])

    with zarr.config.set({"async.concurrency": rng.choice([2, 10, 500])}):
        for opens in (xr.open_datatree, xr.open_dataset, xr.open_groups):
            assert_same_outcome(opens, kind(stored), **keywords)


class HangingStore(Wrapper):
    """Never answers requests for the keys that `hangs` is true for."""

    def __init__(self, store, hangs, is_asked=None, is_given_up=None):
        super().__init__(store)
        self._hangs = hangs
        self.is_asked = is_asked or threading.Event()
        self.is_given_up = is_given_up or threading.Event()

    def _with_store(self, store):
        return type(self)(store, self._hangs, self.is_asked, self.is_given_up)

    async def get(self, key, prototype, byte_range=None):
        if not self._hangs(key):
            return await super().get(key, prototype, byte_range)
        self.is_asked.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.is_given_up.set()


def only_index():
    """A store without groups and times: xarray reads its index once this engine has returned the dataset."""
    store = MemoryStore()
    xr.Dataset(coords={"x": np.arange(3)}).to_zarr(store, consolidated=True)
    return store


STAGES = {
    "first group": (lambda: tree(3, consolidated=True), lambda key: True),
    "groups below": (lambda: tree(3, consolidated=False), lambda key: key.startswith("g1/")),
    "times, which are decoded": (lambda: tree(3, consolidated=True), is_data),
    "index, after decoding": (only_index, is_data),
}
"""What an opening waits for -> a store, and the keys of the requests that are not answered."""


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("stored", "hangs"), STAGES.values(), ids=STAGES)
def test_an_interrupt_gives_up_what_is_under_way(stored, hangs):
    store = HangingStore(stored(), hangs)
    main = threading.main_thread().ident
    signaller = threading.Thread(target=lambda: (store.is_asked.wait(), signal.pthread_kill(main, signal.SIGINT)))
    signaller.start()

    with pytest.raises(KeyboardInterrupt):
        open_tree(store)
    signaller.join()

    assert store.is_given_up.wait(10)
    assert open_ours(Wrapper(many_variables(3, consolidated=True))).sizes["x"] == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_while_groups_are_prepared_gives_up_the_values_of_earlier_ones(error, monkeypatch):
    store, prepare = HangingStore(tree(3, consolidated=True), is_data), datasets._prepare

    def last_fails(group, *others):
        if group.zarr_group.path == "g2/h1":
            assert store.is_asked.wait(20)
            raise error
        return prepare(group, *others)

    monkeypatch.setattr(datasets, "_prepare", last_fails)
    monkeypatch.setattr(datasets, "_decode", lambda *_: None)  # which would wait for the values of the first groups

    with pytest.raises(error):
        open_tree(store)

    assert store.is_given_up.wait(10)
