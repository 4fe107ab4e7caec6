"""Random graphs of what dask can do with an array, on this engine's arrays and on those of xarray's own."""

import copy

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask import graph_manipulation
from distributed import Client
from helpers.clusters import local_cluster
from helpers.compare import assert_same_values
from helpers.data.corpus import counting
from helpers.data.datasets import open_ours, open_stock
from helpers.every_pair import SEED, usually
from hypothesis import example, given, reject
from hypothesis import strategies as st
from zarr.storage import MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated")

SHAPE = (7, 5)
NAMES = ("a", "b", "c")
LAYOUTS = {
    "shards": {"chunks": (2, 3), "shards": (4, 3)},
    "chunks": {"chunks": (3, 5)},
    "one block": {"chunks": (7, 5)},
}


def rows_doubled(block):
    return block * 2


def stored(array):
    target = np.zeros(SHAPE, array.dtype)
    da.store(array, target, lock=False)
    return da.from_array(target, chunks=3)


def from_delayed_blocks(array):
    rows = zip(array.to_delayed(), array.chunks[0], strict=True)
    blocks = [
        [
            da.from_delayed(block, (height, width), array.dtype)
            for block, width in zip(row, array.chunks[1], strict=True)
        ]
        for row, height in rows
    ]
    return da.block(blocks)


MAKING = {
    "same": lambda a, b: a[...],
    "sum": lambda a, b: a + b,
    "rechunk": lambda a, b: a.rechunk((3, 4)),
    "same rechunk": lambda a, b: a.rechunk(a.chunks),
    "same dtype": lambda a, b: a.astype(a.dtype, copy=False),
    "same shape": lambda a, b: a.reshape(SHAPE),
    "backwards": lambda a, b: a[::-1, ::-1],
    "rolled": lambda a, b: da.roll(a, 2, axis=0),
    "transposed twice": lambda a, b: a.T.copy().T,
    "where": lambda a, b: da.where(a > b, a, 0),
    "minus its mean": lambda a, b: a - a.mean(axis=0).astype(a.dtype),
    "cumulative": lambda a, b: a.cumsum(axis=0),
    "map_blocks": lambda a, b: a.map_blocks(rows_doubled, dtype=a.dtype),
    "map_overlap": lambda a, b: a.rechunk((4, 5)).map_overlap(rows_doubled, depth=1, boundary="none", dtype=a.dtype),
    "concatenate": lambda a, b: da.concatenate([a[:3], b[3:]]),
    "stack": lambda a, b: da.stack([a, b]).max(axis=0),
    "blocks": lambda a, b: da.concatenate([a.blocks[:1], a.blocks[1:]]) if a.numblocks[0] > 1 else a.blocks[:],
    "copy": lambda a, b: a.copy(),
    "copy.copy": lambda a, b: copy.copy(a),
    "copy.deepcopy": lambda a, b: copy.deepcopy(a),
    "pickle": lambda a, b: cloudpickle.loads(cloudpickle.dumps(a)),
    "persist": lambda a, b: a.persist(),
    "persist both": lambda a, b: dask.persist(a, b)[1],
    "optimize": lambda a, b: dask.optimize(a)[0],
    "optimize both": lambda a, b: dask.optimize(a, b)[1],
    "clone": lambda a, b: graph_manipulation.clone(a),
    "clone without b": lambda a, b: graph_manipulation.clone(a, omit=b),
    "bind": graph_manipulation.bind,
    "wait_on": lambda a, b: graph_manipulation.wait_on(a, b)[0],
    "to_delayed": lambda a, b: from_delayed_blocks(a),
    "delayed": lambda a, b: da.from_delayed(dask.delayed(np.negative)(a), SHAPE, a.dtype),
    "store": lambda a, b: stored(a),
    "xarray": lambda a, b: xr.DataArray(a).isel(dim_0=slice(None)).data,
}
"""Array from two."""


def assign(a, b):
    a[1:3] = b[2:4]


def assign_where(a, b):
    a[a > 30] = 0


def iadd(a, b):
    a += b


def rebind(a, b):
    a.dask, a._name, a._chunks, a._meta = b.dask, b.name, b.chunks, b._meta


CHANGING = {
    "out of one": lambda a, b: np.add(b, 1, out=a),
    "out of itself": lambda a, b: np.add(a, 1, out=a),
    "out of both": lambda a, b: np.subtract(a, b, out=a),
    "out of a reduction": lambda a, b: da.cumsum(b, axis=1, out=a),
    "assign": assign,
    "assign where": assign_where,
    "iadd": iadd,
    "rebind": rebind,
    "compute": dask.compute,
    "compute, then change": lambda a, b: a.compute().fill(0),
}
"""What is done to the first of two arrays."""

index = st.integers(0, len(NAMES) - 1)
steps = st.lists(st.tuples(st.sampled_from([*MAKING, *CHANGING]), index, index, index), min_size=1, max_size=7)
wanted = st.lists(index, min_size=1, max_size=4)


@pytest.fixture(scope="module")
def store():
    store = MemoryStore()
    for layout, encoding in LAYOUTS.items():
        arrays = {name: (("x", "y"), counting(SHAPE) * factor) for factor, name in enumerate(NAMES, 1)}
        xr.Dataset(arrays).to_zarr(store, group=layout, encoding=dict.fromkeys(NAMES, encoding), mode="a")
    return store


def arrays_of(opened):
    return [opened[name].data for name in NAMES]


def carry_out(steps, arrays):
    """Do the steps, each to arrays of the list; what a step makes takes a place in it."""
    for name, first, second, place in steps:
        if name in CHANGING:
            CHANGING[name](arrays[first], arrays[second])
        else:
            arrays[place] = MAKING[name](arrays[first], arrays[second])
    return arrays


@given(layout=st.sampled_from(list(LAYOUTS)), steps=steps, wanted=wanted)
@example(layout="shards", steps=[("out of one", 1, 0, 0)], wanted=[1])
@example(layout="shards", steps=[("out of one", 1, 0, 0)], wanted=[0, 1])
@example(layout="chunks", steps=[("rebind", 1, 0, 0)], wanted=[1])
@example(
    layout="one block", steps=[("same", 0, 0, 1), ("out of one", 0, 2, 0), ("optimize", 0, 0, 2)], wanted=[0, 1, 2]
)
def test_graph_gives_what_it_gives_of_the_zarr_engine(store, layout, steps, wanted):
    stock = arrays_of(open_stock(store, group=layout, chunks={}))
    try:
        carry_out(steps, stock)
        expected = dask.compute(*[stock[n] for n in wanted])
    except (ValueError, KeyError, AssertionError):  # dask's own: it cannot use all that `clone` makes
        reject()

    ours = carry_out(steps, arrays_of(open_ours(store, group=layout, chunks={})))

    together = dask.compute(*[ours[n] for n in wanted])
    for result, alone, values in zip(together, wanted, expected, strict=True):
        assert_same_values(result, values)
        assert_same_values(ours[alone].compute(), values)


@pytest.fixture(scope="module")
def client():
    with local_cluster(2, 1, processes=False) as client:
        yield client


@pytest.mark.parametrize("first", usually([*MAKING, *CHANGING][SEED % 2 :: 2], full=[*MAKING, *CHANGING]))
def test_graph_on_a_cluster(client: Client, store, first):
    steps = [(first, 1, 0, 2), ("out of one", 0, 1, 0)]
    stock = carry_out(steps, arrays_of(open_stock(store, group="shards", chunks={})))
    ours = carry_out(steps, arrays_of(open_ours(store, group="shards", chunks={})))

    expected = client.gather(client.compute(stock))

    for future, array, values in zip(client.compute(ours), client.persist(ours), expected, strict=True):
        assert_same_values(future.result(), values)
        assert_same_values(array.compute(), values)
