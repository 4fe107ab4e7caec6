"""`dask.array.from_zarr` with the pipeline: on threads, in processes, on a cluster."""

import dask
import dask.array as da
import pytest
import zarr
from helpers.clusters import local_cluster
from helpers.codec_pipeline import Refusing, reads_planned
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write

from xarray_gpuzarr import zarr_pipeline

pytestmark = pytest.mark.timeout(120)

DATA = counting((12, 10), "f4")
DATA[:4] = 0  # shards that are never written
LAYOUTS = {
    "sharded": {"chunks": (2, 3), "shards": (4, 6)},
    "unsharded": {"chunks": (5, 4)},
    "v2": {"chunks": (5, 4), "zarr_format": 2},
}
WAYS = {
    "all": lambda a: a,
    "other chunks": lambda a: a.rechunk((5, 7)),
    "steps": lambda a: a[1::3, ::2],
    "rows": lambda a: a[[11, 0, 3]],
    "sum": lambda a: a.sum(axis=0),
}


@pytest.fixture(params=LAYOUTS)
def path(request, local):
    write(local, DATA, name="a/b", **LAYOUTS[request.param])
    return local.root


@pytest.mark.every_value
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("way", WAYS)
def test_reads_are_those_of_zarr(path, scheduler, way):
    with dask.config.set(scheduler=scheduler):
        expected = WAYS[way](da.from_zarr(path, component="a/b")).compute()
        with zarr_pipeline(), reads_planned():
            found = WAYS[way](da.from_zarr(path, component="a/b")).compute()

    assert_same_bits(found, expected)


def refusing(path, name):
    """Open an array whose pipeline leaves nothing to zarr-python, in no process."""
    with zarr_pipeline():
        array = zarr.open_array(path, path=name, mode="r")
    array.async_array.codec_pipeline.own = Refusing([])
    return array


@pytest.fixture
def arrays(local):
    """One of each layout."""
    for name, layout in LAYOUTS.items():
        write(local, DATA, name=name, **layout)
    return [refusing(local.root, name) for name in LAYOUTS]


def test_names_of_tasks_are_those_of_the_same_array(path):
    with zarr_pipeline():
        arrays = [zarr.open_array(path, path="a/b", mode="r") for _ in range(2)]
    arrays[0][...]

    assert da.from_zarr(arrays[0]).name == da.from_zarr(arrays[1]).name


def test_processes_read(arrays):
    for found in dask.compute(*map(da.from_zarr, arrays), scheduler="processes", num_workers=2):
        assert_same_bits(found, DATA)


def test_workers_of_a_cluster_read(arrays):
    with local_cluster():
        for found in dask.compute(*map(da.from_zarr, arrays)):
            assert_same_bits(found, DATA)


def test_what_dask_writes_is_read(path, tmp_path):
    with zarr_pipeline():
        da.to_zarr(da.from_zarr(refusing(path, "a/b"), chunks=(5, 4)) + 1, tmp_path / "written")
        written = da.from_zarr(tmp_path / "written")

    with reads_planned():
        assert_same_bits(written.compute(scheduler="threads"), DATA + 1)
