"""Chunks that a user asks for: what is said is kept, as xarray's own engine does; ``"auto"`` cuts no shard."""

import math
from itertools import pairwise

import dask
import numpy as np
import pytest
import xarray as xr
from dask.array.core import normalize_chunks
from helpers.data.datasets import open_ours, open_stock
from hypothesis import assume, example, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated"),
    pytest.mark.filterwarnings("ignore:The specified chunks separate the stored chunks"),
    pytest.mark.filterwarnings("ignore:Supplying chunks as dimension-order tuples:FutureWarning"),
]

DIMS = ("t", "y", "x")
SHAPE = (24, 10, 9)
SHARD = (6, 4, 9)
DTYPE = np.dtype("f4")
LIMITS = ("1 B", "200 B", "512 B", "900 B", "2 kB", "1 MB")
ROUTES = {
    "open": lambda opened, store, chunks: opened(store, chunks=chunks),
    "tree": lambda opened, store, chunks: xr.open_datatree(
        store, engine={open_ours: "gpuzarr", open_stock: "zarr"}[opened], chunks=chunks
    ),
    "later": lambda opened, store, chunks: opened(store, chunks=None).chunk(chunks),
    "an array": lambda opened, store, chunks: opened(store, chunks=None)["v"].chunk(chunks).to_dataset(),
    "a variable": lambda opened, store, chunks: {"v": opened(store, chunks=None)["v"].variable.chunk(chunks)},
}
AT_OPEN, LATER = ("open", "tree"), ("later", "an array", "a variable")
"""Routes on which xarray writes dask's numbers for ``"auto"``, and others."""


@pytest.fixture(scope="module")
def stores():
    """The same array in shards, and in chunks that are as large."""
    stores = {"sharded": MemoryStore(), "plain": MemoryStore()}
    ds = xr.Dataset({"v": (DIMS, np.arange(math.prod(SHAPE), dtype=DTYPE).reshape(SHAPE))})
    ds.to_zarr(stores["sharded"], encoding={"v": {"chunks": (3, 2, 3), "shards": SHARD}})
    ds.to_zarr(stores["plain"], encoding={"v": {"chunks": SHARD}})
    return stores


def chunks_or_error(route, opened, store, chunks):
    try:
        return ROUTES[route](opened, store, chunks)["v"].chunks
    except (TypeError, ValueError) as err:
        return type(err)


def parts(length):
    """Lengths that add up to a length."""
    ends = st.sets(st.integers(1, length - 1), max_size=4).map(lambda ends: [0, *sorted(ends), length])
    return ends.map(lambda ends: tuple(b - a for a, b in pairwise(ends)))


def lengths(length):
    return st.one_of(st.integers(1, length + 3), st.just(-1), st.none(), parts(length))


@st.composite
def numbers_of_auto(draw):
    """What dask would make of the word, as a user may write it too."""
    with dask.config.set({"array.chunk-size": draw(st.sampled_from(LIMITS))}):
        previous = draw(st.sampled_from([SHARD, (3, 2, 3), None]))
        normal = normalize_chunks("auto", shape=SHAPE, dtype=DTYPE, previous_chunks=previous)
    return dict(zip(DIMS, draw(st.sampled_from([normal, tuple(axis[0] for axis in normal)])), strict=True))


nbytes = st.builds(dict.fromkeys, st.sets(st.sampled_from(DIMS)), st.sampled_from(LIMITS))
mappings = st.fixed_dictionaries({}, optional={dim: lengths(n) for dim, n in zip(DIMS, SHAPE, strict=True)})
requests = st.one_of(numbers_of_auto(), mappings, nbytes, st.integers(1, 30), st.just(-1))


def is_auto(route, chunks, limit):
    """Whether every block is said, as xarray does at open, and just as dask makes them of ``"auto"``."""
    if not isinstance(chunks, dict) or any(isinstance(lengths, str) for lengths in chunks.values()):
        return False
    with dask.config.set({"array.chunk-size": limit}):
        of_dask = normalize_chunks("auto", shape=SHAPE, dtype=DTYPE, previous_chunks=SHARD)
    blocks_are_said = route in AT_OPEN or all(isinstance(lengths, tuple) for lengths in chunks.values())
    return blocks_are_said and of_dask == normalize_chunks(tuple(chunks.get(dim) or -1 for dim in DIMS), SHAPE)


of_every_axis = st.one_of(numbers_of_auto(), mappings).map(
    lambda chunks: {dim: chunks.get(dim) or n for dim, n in zip(DIMS, SHAPE, strict=True)}
)


@given(
    st.sampled_from(list(ROUTES)),
    st.tuples(st.just("plain"), requests) | st.tuples(st.just("sharded"), of_every_axis),
    st.sampled_from(LIMITS),
)
@example("open", ("plain", {"t": 4, "y": 4, "x": 9}), "576 B")
@example("open", ("plain", {"t": "200 B"}), "128 MiB")
def test_what_is_said_is_kept(stores, route, wanted, limit):
    layout, chunks = wanted
    assume(not is_auto(route, chunks, limit))
    with dask.config.set({"array.chunk-size": limit}):
        ours, stock = (chunks_or_error(route, opened, stores[layout], chunks) for opened in (open_ours, open_stock))

    assert ours == stock


@pytest.mark.parametrize("route", LATER)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("dims", [DIMS, ("t",), ("y", "t"), ("x",)])
@pytest.mark.parametrize("layout", ["sharded", "plain"])
def test_auto_cuts_no_shard(stores, route, limit, dims, layout):
    with dask.config.set({"array.chunk-size": limit}):
        chunks = ROUTES[route](open_ours, stores[layout], dict.fromkeys(dims, "auto"))["v"].chunks

    for dim, axis, shard in zip(DIMS, chunks, SHARD, strict=True):
        assert dim not in dims or not any(length % shard for length in axis[:-1])


@pytest.mark.parametrize("route", AT_OPEN)
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("layout", ["sharded", "plain"])
def test_auto_at_open_cuts_shards_along_one_axis_at_most(stores, route, limit, layout):
    with dask.config.set({"array.chunk-size": limit}):
        chunks = ROUTES[route](open_ours, stores[layout], "auto")["v"].chunks

    cut = [any(length % shard for length in axis[:-1]) for axis, shard in zip(chunks, SHARD, strict=True)]
    assert sum(cut) <= 1


@pytest.mark.parametrize("route", ROUTES)
def test_auto_is_a_word_for_all_axes(stores, route):
    with dask.config.set({"array.chunk-size": "1 B"}):
        chunks = ROUTES[route](open_ours, stores["sharded"], "auto")["v"].chunks

    assert chunks == normalize_chunks(SHARD, SHAPE)


def test_numbers_that_dask_would_choose_are_kept():
    store = MemoryStore()
    encoding = {"v": {"chunks": (3,), "shards": (6,)}}
    xr.Dataset({"v": ("x", np.zeros(64))}).to_zarr(store, encoding=encoding)

    with dask.config.set({"array.chunk-size": "40 B"}):  # less than a shard
        (automatic,) = open_ours(store, chunks=None)["v"].chunk("auto").chunks
        (by_dask,) = normalize_chunks("auto", shape=(64,), dtype="f8", previous_chunks=(6,))
        (kept,) = open_ours(store, chunks={"x": by_dask[0]})["v"].chunks

    assert automatic == (6,) * 10 + (4,)
    assert kept == by_dask != automatic


def test_an_empty_array_has_automatic_chunks():
    store = MemoryStore()
    xr.Dataset({"v": (("t", "x"), np.zeros((0, 3)))}).to_zarr(store)

    for route in ROUTES:
        ours, stock = (chunks_or_error(route, opened, store, {"t": "auto"}) for opened in (open_ours, open_stock))
        assert ours == stock
