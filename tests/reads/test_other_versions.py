"""What another version of the package has pickled: it can be passed on, and an error names both once it is used."""

import pickle

import cloudpickle
import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.damage import explained
from helpers.data.datasets import open_ours, write_weather
from zarr.codecs import ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr import GpuZarrError, batches
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.read import read, stored_array

VERSION = xarray_gpuzarr.__version__.encode()
OTHER = b"9" * len(VERSION)


@pytest.fixture
def opened(local):
    write_weather(local)
    return open_ours(local)


def unplanned():
    """Describe an array that only zarr-python reads."""
    around = {"serializer": ShardingCodec(chunk_shape=(4,)), "compressors": ZstdCodec()}
    return stored_array(zarr.create_array(MemoryStore(), shape=(8,), chunks=(8,), dtype="i4", **around))


USES = {
    "dataset": (lambda ds: ds, lambda ds: ds.load()),
    "array": (lambda ds: ds.t2m, lambda array: array.values),
    "selection": (lambda ds: ds.t2m[1:, [0, 2]], lambda array: array.values),
    "points": (lambda ds: ds.t2m, lambda array: array[xr.Variable("p", [1]), xr.Variable("p", [2])].values),
    "host copies": (lambda ds: ds.gpuzarr.to_host(), lambda ds: ds.load()),
    "explanation": (lambda ds: ds, lambda ds: ds.gpuzarr.explain()),
    "dask": (lambda ds: ds.chunk(), lambda ds: ds.compute(scheduler="synchronous")),
    "graph": (lambda ds: ds.t2m.chunk().data.dask, lambda graph: dask.get(dict(graph), list(graph))),
    "tree": (lambda ds: xr.DataTree.from_dict({"/": ds}), lambda tree: tree.load()),
    "batches": (lambda ds: batches(ds, {"lat": 2}, 2), list),
    "read by zarr": (lambda _: unplanned(), lambda stored: read(stored, ..., decoder_for("host"))),
}
"""What users pickle and dask sends to workers, and what is done with it."""


@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_the_error_names_both_versions(opened, what, module):
    made, use = USES[what]
    there = module.loads(module.dumps(made(opened)).replace(VERSION, OTHER))

    versions = f"version {OTHER.decode()} has pickled it", f"version {VERSION.decode()} is installed"
    with explained(GpuZarrError, *versions, match="another version"):
        use(there)


def test_nothing_is_unpickled_that_another_version_may_lack():
    rebuild, (version, known, *places) = unplanned().__reduce__()

    there = rebuild(OTHER.decode(), b"fields of classes that are not here", *places)
    here = rebuild(version, known, *places)

    assert here.shape == (8,)
    with pytest.raises(GpuZarrError, match="another version"):
        there.shape  # noqa: B018


def test_a_process_of_another_version_passes_arrays_on(opened):
    scheduler = pickle.loads(pickle.dumps(opened.t2m).replace(VERSION, OTHER))

    worker = pickle.loads(pickle.dumps(scheduler).replace(OTHER, VERSION))

    np.testing.assert_array_equal(worker.values, opened.t2m.values)
