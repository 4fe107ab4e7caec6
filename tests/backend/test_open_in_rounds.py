"""Groups and trees on slow stores are opened in a few rounds of requests, with what engine="zarr" gives."""

import asyncio
import copy
import pickle
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_tree, assert_same_values
from helpers.data.datasets import open_ours, open_stock, weather
from helpers.linux import needs_linux
from helpers.outcome import outcome
from helpers.stores.fakes import RecordingStore, Wrapper, drop, is_data, put, take
from zarr.abc.store import ByteRequest, Store
from zarr.storage import MemoryStore, StorePath

import xarray_gpuzarr
from xarray_gpuzarr.backend import datasets, values_ahead
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.errors import CorruptChunkError, OptionError, SelectionError, StoreReadError

_TASKS = Path("/proc/self/task")  # Linux
_SILENCE_S = 0.1
"""So long after the last request all are answered; no thread takes as long to make its next one."""
_LOOK_S = 0.001
"""So often somebody looks whether any thread still does something: if none does, none makes a request."""
_NOTHING_S = 0.0001
"""Threads that worked for less did nothing: the clocks are not read at one moment."""
_N_LOOKS = 3
"""So many times in a row nothing happened: a thread that waits for Python's lock has had it in the meantime."""


class Rounds(list[list[str]]):
    """One list of requests for each round."""

    over = False
    """Whether requests are answered at once from now on, as part of the last round."""


class RoundStore(Wrapper):
    """Counts rounds, and requests by their keys."""

    def __init__(self, store: Store, rounds: Rounds | None = None) -> None:
        super().__init__(store)
        self.rounds = Rounds() if rounds is None else rounds
        self._answer: asyncio.Event | None = None

    def _with_store(self, store: Store) -> "RoundStore":
        return type(self)(store, self.rounds)

    @property
    def asked(self) -> list[str]:
        """Every request of every round."""
        return [key for keys in self.rounds for key in keys]

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        await self._turn(key)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await self._turn(f"{prefix}/")
        async for name in super().list_dir(prefix):
            yield name

    async def _turn(self, request: str) -> None:
        if self.rounds.over:
            self.rounds[-1].append(request)
            return
        if self._answer is None:
            self._answer = asyncio.Event()
            self.rounds.append([])
            asyncio.get_running_loop().create_task(self._close(self._answer))
        self.rounds[-1].append(request)
        await self._answer.wait()

    async def _close(self, answer: asyncio.Event) -> None:
        n_asked, worked_s, quiet, since = 0, 0.0, 0, time.monotonic()
        while quiet < _N_LOOKS and time.monotonic() - since < _SILENCE_S:
            await asyncio.sleep(_LOOK_S)
            quiet = 0 if _anybody_works() or _others_worked_s() - worked_s > _NOTHING_S else quiet + 1
            worked_s = _others_worked_s()
            if len(self.rounds[-1]) > n_asked:
                n_asked, quiet, since = len(self.rounds[-1]), 0, time.monotonic()
        self._answer = None
        answer.set()


def _others_worked_s() -> float:
    """Return how long threads other than this one have worked so far."""
    return time.process_time() - time.thread_time()


def _anybody_works() -> bool:
    """Say whether the running event loop has more to do, or another thread does something or waits for a core."""
    if asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]  # asyncio's own
        return True
    if not _TASKS.exists():
        return True  # only silence tells
    own = str(threading.get_native_id())
    return any(_state(task) in "RD" for task in _TASKS.iterdir() if task.name != own)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # it has ended


pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open Zarr store with consolidated"),
    pytest.mark.usefixtures("usual_pipeline"),  # requests are counted where it makes them
    needs_linux,  # rounds end when no thread of /proc works
]

ENGINES = {"engine": "gpuzarr", "device": "host"}, {"engine": "zarr"}
DEPTH = 3
"""Of `tree`: its arrays lie in groups of groups of the root."""


def small(value, n_times=4):
    """A dataset with index coordinates, one of them times, and bounds and scalars that are times."""
    times = pd.date_range("2000-01-01", periods=n_times)
    ds = xr.Dataset(
        {
            "a": (("time", "x"), np.full((n_times, 3), value, "f4")),
            "valid": (("time", "x"), np.broadcast_to(times.to_numpy()[:, None], (n_times, 3)).copy()),
            "time_bounds": (("time", "nv"), np.stack([times, times + pd.Timedelta("1D")], 1)),
        },
        coords={"time": times, "x": np.arange(3.0) + value, "name": ("x", list("uvw")), "begin": times[0]},
        attrs={"value": value},
    )
    ds["time"].attrs["bounds"] = "time_bounds"
    return ds


def tree(zarr_format, *, consolidated, n=(3, 2)):
    return MemoryStore(dict(_tree(zarr_format, consolidated, n)))


@cache
def _tree(zarr_format, consolidated, n):
    objects = {}
    groups = {f"/g{i}/h{j}": small(10 * i + j) for i in range(n[0]) for j in range(n[1])}
    xr.DataTree.from_dict({"/": xr.Dataset(attrs={"root": 1}), **groups}).to_zarr(
        MemoryStore(objects), zarr_format=zarr_format, consolidated=consolidated
    )
    return objects


def many(zarr_format, *, consolidated, **encoding):
    store = MemoryStore()
    ds = small(1, 8).assign({f"v{i}": ("x", np.arange(3.0)) for i in range(40)})
    ds.to_zarr(store, zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)
    return store


def open_tree(store, **keywords):
    return xr.open_datatree(store, engine="gpuzarr", device="host", **keywords)


def assert_rounds(store, n=1, *, most=None):
    """Compare how many rounds there were, in which each object was asked for once; from now on, there are none."""
    assert n <= len(store.rounds) <= (n if most is None else most), store.rounds
    assert max(Counter(store.asked).values()) == 1
    store.rounds.over = True


@pytest.fixture(params=[{}, None], ids=["dask", "lazy"])
def chunks(request):
    return request.param


@pytest.fixture
def many_at_once():
    with zarr.config.set({"async.concurrency": 500}):
        yield


@pytest.mark.every_combination
@pytest.mark.usefixtures("many_at_once")
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

    assert_rounds(store, least, most=most)
    assert_same_tree(ours, xr.open_datatree(stored, engine="zarr"))


def test_values_are_asked_for_while_other_groups_are_prepared(monkeypatch):
    asked, n_prepared, prepare = threading.Event(), Counter(), datasets._prepare

    class Noting(Wrapper):
        async def get(self, key, prototype, byte_range=None):
            if is_data(key):
                asked.set()
            return await super().get(key, prototype, byte_range)

    def last_waits(store, *rest):
        n_prepared["groups"] += 1
        assert n_prepared["groups"] < 10 or asked.wait(20)
        return prepare(store, *rest)

    monkeypatch.setattr(datasets, "_prepare", last_waits)

    assert len(list(open_tree(Noting(tree(3, consolidated=True))).subtree)) == n_prepared["groups"] == 10


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])
def test_zarr_makes_each_array_once(zarr_format, consolidated, kind, monkeypatch):
    stored, made, init = kind(tree(zarr_format, consolidated=consolidated)), [], zarr.AsyncArray.__init__
    monkeypatch.setattr(zarr.AsyncArray, "__init__", lambda self, *a, **k: (made.append(self), init(self, *a, **k))[1])

    opened = open_tree(stored, consolidated=consolidated)

    assert len(made) == sum(len(node.variables) for node in (each.to_dataset(inherit=False) for each in opened.subtree))


def test_a_store_that_cannot_be_listed_is_refused_as_by_the_stock_engine(zarr_format):
    class Unlisted(Wrapper):
        supports_listing = False

    stored = Unlisted(tree(zarr_format, consolidated=False))

    assert isinstance(assert_same_outcome(xr.open_datatree, stored), tuple)


IN_SHARDS = {
    "time": {"chunks": (2,), "shards": (4,), "dtype": "i4"},
    "time_bounds": {"chunks": (2, 2), "shards": (4, 2)},
}


@pytest.mark.usefixtures("many_at_once")
@pytest.mark.parametrize(("zarr_format", "encoding"), [(2, {}), (3, {}), (3, IN_SHARDS)], ids=["2", "3", "shards"])
@pytest.mark.parametrize(("consolidated", "n_rounds"), [(True, 2), (None, 4), (False, 3)])
def test_a_group_takes_as_many_rounds_whatever_its_arrays(zarr_format, encoding, consolidated, n_rounds):
    stored = many(zarr_format, consolidated=bool(consolidated), **encoding)
    store = RoundStore(stored)

    ours = open_ours(store, consolidated=consolidated)

    assert_rounds(store, n_rounds)
    assert_same_dataset(ours, xr.open_dataset(stored, engine="zarr"))


@pytest.mark.parametrize("n_at_once", [2, 5])
def test_no_more_requests_are_under_way_than_zarr_is_told(zarr_format, n_at_once):
    store = RoundStore(tree(zarr_format, consolidated=False, n=(2, 1)))

    with zarr.config.set({"async.concurrency": n_at_once}):
        open_tree(store)

    assert max(len(keys) for keys in store.rounds if not any(map(is_data, keys))) <= n_at_once


def test_zarr_may_be_told_that_nothing_bounds_its_requests(zarr_format):
    stored = tree(zarr_format, consolidated=True)

    with zarr.config.set({"async.concurrency": None}):
        for store in (stored, Wrapper(stored)):
            assert_same_tree(open_tree(store), xr.open_datatree(stored, engine="zarr"))


@pytest.mark.every_value
@pytest.mark.parametrize("group", ["g1", "/g1/h0", "g1/h0"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_a_group_of_a_tree_is_opened(zarr_format, group, consolidated):
    stored = tree(zarr_format, consolidated=consolidated)

    stores = [RoundStore(stored) for _ in range(3)]

    dataset, opened = open_ours(stores[0], group=group), open_tree(stores[1], group=group)
    ours = xr.open_groups(stores[2], engine="gpuzarr", group=group)

    for store in stores:
        store.rounds.over = True
    assert_same_dataset(dataset, xr.open_dataset(stored, engine="zarr", group=group))
    assert_same_tree(opened, xr.open_datatree(stored, engine="zarr", group=group))
    stock = xr.open_groups(stored, engine="zarr", group=group)
    assert list(ours) == list(stock)
    for path, expected in stock.items():
        assert_same_dataset(ours[path], expected)


@pytest.mark.every_value
@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/*/h0", ["/", "/g0", "/g0/h0", "/g1", "/g1/h0", "/g2", "/g2/h0"]),
        ("*/h1", ["/", "/g0", "/g0/h1", "/g1", "/g1/h1", "/g2", "/g2/h1"]),
        ("/g[02]", ["/", "/g0", "/g2"]),
        ("g1/*", ["/", "/g1", "/g1/h0", "/g1/h1"]),
    ],
)
def test_a_pattern_opens_the_groups_that_match(zarr_format, consolidated, pattern, expected):
    stored = tree(zarr_format, consolidated=consolidated)
    store = RoundStore(stored)

    ours = open_tree(store, group=pattern)

    store.rounds.over = True
    whole = xr.open_datatree(stored, engine="zarr")
    assert sorted(ours.groups) == expected
    assert {node.path for node in whole.match(pattern).leaves} <= set(expected)
    for path in expected:
        assert_same_dataset(ours[path].to_dataset(inherit=False), whole[path].to_dataset(inherit=False))
    others = {path for path in whole.groups if path not in expected}
    below = tuple(f"{path}/" for path in others)
    assert not [key for key in store.asked if is_data(key) and f"/{key}".startswith(below) and not key.endswith("/")]
    assert sorted(open_tree(stored, group=pattern).groups) == expected


def test_a_pattern_that_no_group_matches_names_those_that_were_left_out():
    for store in (RoundStore(tree(3, consolidated=False)), tree(3, consolidated=True)):
        with pytest.raises(OptionError) as caught:
            open_tree(store, group="/g0/no*")

        assert "no group matches" in str(caught.value)
        named = caught.value.found.removeprefix("groups that were looked at: ").split(", ")
        assert {"/", "/g0", "/g0/h0", "/g1"} <= set(named)
        assert len(set(named)) == len(named)


def test_a_pattern_from_the_root_asks_for_nothing_below_other_groups():
    store = RoundStore(tree(3, consolidated=False))

    open_tree(store, group="/*/h0")

    assert not [key for key in store.asked if "h1/" in key and not key.endswith("h1/zarr.json")]


def test_a_group_is_taken_by_its_name_where_that_looks_like_a_pattern(zarr_format):
    stored = MemoryStore()
    small(1).to_zarr(stored, group="a[b]", zarr_format=zarr_format, consolidated=False)
    small(1).to_zarr(stored, group="a[b]/c", zarr_format=zarr_format, consolidated=False, mode="a")

    for store in (RoundStore(stored), stored):
        ours = open_tree(store, group="a[b]")
        assert_same_tree(ours, xr.open_datatree(stored, engine="zarr", group="a[b]"))


def test_the_path_of_a_store_is_kept(zarr_format):
    stored = tree(zarr_format, consolidated=False)

    store = RoundStore(stored)

    ours = open_tree(StorePath(store, "g1"))

    assert max(Counter(store.asked).values()) == 1
    store.rounds.over = True
    assert_same_tree(ours, xr.open_datatree(StorePath(stored, "g1"), engine="zarr"))
    ours.close()


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


def assert_same_outcome(opens, store, is_same=None, **keywords):
    """Compare what both engines give of a store, or their errors, and their warnings; return what the stock one gives.

    Errors are compared by `is_same`, given ours and the stock one, or are equal.
    """
    ours, stock = (outcome(lambda engine=engine: opens(store, **engine, **keywords)) for engine in ENGINES)
    if isinstance(stock[0], tuple) or isinstance(ours[0], tuple):
        assert ours[0] == stock[0] if is_same is None else is_same(ours[0], stock[0])
    elif opens is xr.open_datatree:
        assert_same_tree(ours[0], stock[0])
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


def random_store(rng, zarr_format):
    """A tree of groups, arrays and strange objects, some of its groups consolidated, some of its documents damaged."""
    objects = {}
    store = MemoryStore(objects)
    groups = [zarr.open_group(store, zarr_format=zarr_format)]
    for i in range(rng.randrange(1, 9)):
        group = rng.choice(groups).require_group(rng.choice([f"g{i}", f"{i}", "c", f"h.{i}", f"ü{i}"]))
        groups.append(group)
    for i in range(rng.randrange(12)):
        group = rng.choice(groups)
        with suppress(Exception):  # of the same name as another node
            dims = (rng.choice(["x", f"v{i}", "time"]),)
            name = rng.choice([dims[0], f"v{i}", f"w{i}"])
            attributes = {"units": "days since 2000-01-01"} if rng.random() < 0.4 else {"bounds": "w1"}
            array = group.create_array(
                name, data=np.arange(4) * i, chunks=rng.choice([(1,), (3,), (4,)]), attributes=attributes,
                **({"dimension_names": dims} if zarr_format == 3 else {}),
            )  # fmt: skip
            if zarr_format == 2:
                array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
    for group in groups:
        if rng.random() < 0.25:
            zarr.consolidate_metadata(store, path=group.path)
    keys = sorted(key for key in objects if not is_data(key))
    for _ in range(rng.randrange(3)):
        key = rng.choice(keys)
        kind = rng.random()
        if kind < 0.3:
            objects.pop(key, None)
        elif kind < 0.4 and key in objects:
            put(store, key, take(store, key)[: rng.randrange(9)])
        elif kind >= 0.4:
            objects[f"{rng.choice(groups).path}/README.txt".strip("/")] = next(iter(objects.values()))
    return store


@pytest.mark.every_value
@pytest.mark.parametrize("seed", range(30))
def test_any_tree_is_that_of_the_stock_engine(zarr_format, seed):
    rng = random.Random(seed)
    stored = random_store(rng, zarr_format)
    consolidated = rng.choice([None, None, True, False])
    keywords = {"consolidated": consolidated, "zarr_format": rng.choice([None, None, zarr_format])}

    for opens in (xr.open_datatree, xr.open_dataset):
        assert_same_outcome(opens, Wrapper(stored), **keywords)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_gives_up_what_is_under_way():
    given_up, begun = threading.Event(), threading.Event()

    class Hanging(Wrapper):
        async def get(self, key, prototype, byte_range=None):
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                given_up.set()

    main = threading.main_thread().ident
    signaller = threading.Thread(target=lambda: (begun.wait(), signal.pthread_kill(main, signal.SIGINT)))
    signaller.start()
    with pytest.raises(KeyboardInterrupt):
        open_ours(Hanging(tree(3, consolidated=True)))
    signaller.join()

    assert given_up.wait(10)
    assert open_ours(RoundStore(many(3, consolidated=True))).sizes["x"] == 3


@pytest.mark.parametrize("name", ["x", "name"])
def test_values_that_were_fetched_for_indexes_do_not_outlive_opening(zarr_format, name):
    stored = MemoryStore()
    ds = xr.Dataset(coords={"x": [1, 2, 3], "name": ("name", ["a", "bb", "c"]), "at": pd.Timestamp("2000")})
    ds.to_zarr(stored, zarr_format=zarr_format)
    store = RoundStore(stored)
    opened = open_ours(store, create_default_indexes=False)
    assert [key for key in store.asked if key.startswith(f"{name}/")]
    changed = np.array({"x": [7, 8, 9], "name": ["d", "e", "f"]}[name])
    zarr.open_group(stored, mode="r+")[name][:] = changed

    again = pickle.loads(pickle.dumps(opened.drop_vars("at"))), copy.deepcopy(opened)

    for each in (opened, *again):
        assert each[name].to_numpy().tolist() == changed.tolist()


def test_what_is_polled_is_not_old():
    stored = many(3, consolidated=True)
    ds = open_ours(Wrapper(stored), create_default_indexes=False, cache=False)

    for last in (3, 9, 11):
        zarr.open_group(stored, mode="r+")["x"][-1] = last
        assert ds["x"][-1] == last


def test_an_index_of_many_chunks_is_asked_for_once():
    stored, times = MemoryStore(), pd.date_range("2000-01-01", periods=1000, freq="h")
    xr.Dataset(coords={"time": times}).to_zarr(stored, zarr_format=3, encoding={"time": {"chunks": (1,)}})
    store = RecordingStore(stored)

    ds = open_ours(store)

    assert Counter(key for key, _ in store.requests) == Counter(f"time/c/{i}" for i in range(1000))
    assert ds.indexes["time"].equals(times)


@pytest.mark.parametrize("keywords", [{}, {"decode_times": False}, {"create_default_indexes": False}])
def test_zarr_reads_no_numbers_of_local_files(tmp_path, zarr_format, keywords, monkeypatch):
    weather().drop_vars("station").to_zarr(tmp_path, zarr_format=zarr_format)
    expected = xr.open_dataset(tmp_path, engine="zarr", **keywords).load()
    monkeypatch.setattr(zarr.AsyncArray, "getitem", None)
    monkeypatch.setattr(zarr.Array, "__getitem__", None)

    ours = open_ours(tmp_path, **keywords)

    assert_same_dataset(ours, expected)


@pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])
@pytest.mark.parametrize("name", ["time", "x"])
def test_a_damaged_index_is_named_where_it_is_read(zarr_format, kind, name):
    stored, middle = MemoryStore(), {2: f"{name}/1", 3: f"{name}/c/1"}[zarr_format]
    ds = xr.Dataset(coords={"time": pd.date_range("2000", periods=40), "x": np.arange(40.0)})
    ds.to_zarr(stored, zarr_format=zarr_format, encoding={name: {"chunks": (10,)}})
    put(stored, middle, b"no frame")
    lazy = {"create_default_indexes": False}

    with pytest.raises(CorruptChunkError, match=rf"chunk \(1,\) of array '/{name}'"):
        open_ours(kind(stored))

    assert_same_dataset(*(opens(kind(stored), **lazy).isel({name: [0, -1]}) for opens in (open_ours, open_stock)))


def test_a_long_index_is_not_read_with_others(monkeypatch):
    monkeypatch.setattr(values_ahead, "_MOST_NBYTES", 16)
    stored = many(3, consolidated=True, valid={"chunks": (2, 3), "shards": (8, 3)}, time={"dtype": "i4"})
    store = RoundStore(stored)

    ds = open_ours(store, create_default_indexes=False)

    assert not [key for key in store.asked if key.startswith("x/c")]
    assert_same_dataset(ds.set_xindex("x").set_xindex("time"), xr.open_dataset(stored, engine="zarr"))


@pytest.mark.parametrize("name", ["time", "x"])
def test_an_index_that_could_not_be_fetched_with_others_is_an_error_at_once(zarr_format, name):
    """Its client has spent its retries, and would spend them again."""
    stored, failed = many(zarr_format, consolidated=True), []

    def fails_once(key):
        if not is_data(key) or not key.startswith(f"{name}/") or failed:
            return False
        failed.append(key)
        return True

    with pytest.raises(StoreReadError, match=f"no access to {name}/"):
        open_ours(FailingStore(stored, fails_once))

    assert failed


def test_a_chunk_that_an_index_lacks_is_asked_for_once(zarr_format):
    stored = many(zarr_format, consolidated=True, x={"chunks": (2,)})
    missing = {2: "x/1", 3: "x/c/1"}[zarr_format]
    drop(stored, missing)
    store = RecordingStore(stored)

    ours = open_ours(store)

    assert [key for key, _ in store.requests].count(missing) == 1
    assert_same_dataset(ours, xr.open_dataset(stored, engine="zarr"))


@pytest.mark.parametrize("opened", [open_tree, open_ours])
def test_lazy_variables_are_loaded_side_by_side(zarr_format, opened):
    stored = tree(zarr_format, consolidated=True) if opened is open_tree else many(zarr_format, consolidated=True)
    store = RoundStore(stored)
    lazy, eager = (opened(each, chunks=None) for each in (store, stored))
    n_before = len(store.rounds)

    loaded = lazy.gpuzarr.load()

    assert loaded is lazy
    assert len(store.rounds) - n_before <= 4
    n_loaded = len(store.rounds)
    (assert_same_tree if opened is open_tree else assert_same_dataset)(lazy, eager)
    assert len(store.rounds) == n_loaded


def test_lazy_variables_are_loaded_side_by_side_by_an_event_loop():
    stored = many(3, consolidated=True)
    store = RoundStore(stored)
    names = [f"v{i}" for i in range(40)]
    lazy = open_ours(store, chunks=None)[names].reset_coords(drop=True)
    n_before = len(store.rounds)

    loaded = asyncio.run(lazy.load_async())

    assert len(store.rounds) - n_before <= 2
    assert_same_dataset(loaded, xr.open_dataset(stored, engine="zarr")[names].reset_coords(drop=True))


def test_an_array_is_loaded_with_its_coordinates():
    store = RoundStore(many(3, consolidated=True))
    array = open_ours(store, chunks=None)["a"]

    assert array.gpuzarr.load() is array

    n_rounds = len(store.rounds)
    assert all(each.to_numpy().shape == each.shape for each in (array, *array.coords.values()))
    assert len(store.rounds) == n_rounds


def test_what_dask_or_a_local_file_holds_is_loaded_by_xarray(zarr_format):
    stored = many(zarr_format, consolidated=True)

    for ds in (open_ours(RoundStore(stored), chunks={}), open_ours(stored), open_ours(RoundStore(stored))[["v0"]]):
        loaded = ds.gpuzarr.load()
        assert not loaded.chunks
        xr.testing.assert_identical(loaded, xr.open_dataset(stored, engine="zarr")[list(loaded.data_vars)].load())


def test_a_read_that_fails_while_others_go_on_is_raised():
    stored = many(3, consolidated=True)
    ds = open_ours(FailingStore(stored, lambda key: key.startswith("v7/c")))

    for load in (ds.gpuzarr.load, ds["v7"].load):
        with pytest.raises(Exception, match="no access to v7/c/0"):
            load()


def test_threads_that_load_read_where_their_caller_would(monkeypatch):
    entered = []

    def as_caller(self, stream_of=None):
        caller = threading.get_ident()
        return lambda: entered.append(caller) or nullcontext()

    monkeypatch.setattr(HostDecoder, "as_caller", as_caller)

    open_ours(RoundStore(many(3, consolidated=True)), chunks=None).gpuzarr.load()

    assert set(entered) == {threading.get_ident()}
    assert len(entered) > 1


def test_a_batch_of_many_variables_waits_as_for_one():
    store = MemoryStore()
    values = np.arange(64.0).reshape(8, 8)
    ds = xr.Dataset({f"v{i}": (("t", "x"), values + i) for i in range(8)})
    ds.to_zarr(store, zarr_format=3, encoding={name: {"chunks": (1, 4), "shards": (2, 8)} for name in ds})
    slow = RoundStore(store)
    opened = open_ours(slow, chunks=None)
    n_before = len(slow.rounds)

    (batch,) = xarray_gpuzarr.batches(opened, sizes={"t": 2}, batch=4)

    assert len(slow.rounds) - n_before <= 2
    for name in ds:
        np.testing.assert_array_equal(batch[name].to_numpy().reshape(8, 8), ds[name])


@pytest.mark.parametrize("dtype", [str, "S2"])
def test_text_with_units_of_time_is_left_to_xarray(zarr_format, dtype):
    stored = MemoryStore()
    group = zarr.open_group(stored, zarr_format=zarr_format)
    dims = {"dimension_names": ()} if zarr_format == 3 else {}
    array = group.create_array("v", data=np.array("5", dtype), **dims)
    array.attrs.update({"units": "days since 2000-01-01", "calendar": "360_day", "_ARRAY_DIMENSIONS": []})

    assert_same_outcome(lambda *of, **keywords: xr.open_dataset(*of, **keywords).load(), Wrapper(stored))


@pytest.mark.parametrize("key", [0, -1, 2, 3, 5, -4, slice(1, 2), slice(None, None, -1), [0, 2], np.int64(1)])
def test_an_index_that_was_not_made_is_selected_from_as_by_the_stock_engine(zarr_format, key):
    stored = MemoryStore()
    ds = xr.Dataset(coords={"x": [1, 2, 3], "name": ("name", ["a", "bb", "c"])})
    ds.to_zarr(stored, zarr_format=zarr_format)
    zarr.open_group(stored).create_array("o", shape=(3,), dtype=str, attributes={"_ARRAY_DIMENSIONS": ["o"]},
                                         **({"dimension_names": ("o",)} if zarr_format == 3 else {}))  # fmt: skip

    def chosen(name, engine):
        opened = xr.open_dataset(Wrapper(stored), engine=engine, create_default_indexes=False, consolidated=False)
        return outcome(lambda: opened.variables[name][key].to_numpy())[0]  # noqa: PLW0108  # selecting may raise

    for name in ("x", "name", "o"):
        ours, stock = chosen(name, "gpuzarr"), chosen(name, "zarr")
        if isinstance(stock, tuple) and name == "x":
            assert issubclass(ours[0], SelectionError)
            assert issubclass(stock[0], IndexError)
        elif isinstance(stock, tuple):
            assert ours == stock
        else:
            assert_same_values(ours, stock)


def test_times_that_are_not_decoded_are_not_read():
    store = RoundStore(many(3, consolidated=True))

    open_ours(store, decode_times=False)

    assert {key for key in store.asked if is_data(key)} == {"time/c/0", "x/c/0"}


def test_the_error_of_the_first_group_is_raised():
    stored = MemoryStore()
    root = zarr.open_group(stored, zarr_format=3)
    units = {"units": "furlongs since 2000"}
    root.create_array("t", data=np.arange(3.0), dimension_names=("t",), attributes=units)
    group = root.require_group("g")
    group.create_array("f", data=np.arange(3.0), dimension_names=("x",), attributes={"_FillValue": 5})

    assert isinstance(assert_same_outcome(xr.open_datatree, Wrapper(stored), consolidated=False), tuple)
