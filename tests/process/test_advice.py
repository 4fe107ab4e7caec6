"""Warnings that say what to do: when they come, how often, and whose line they point at."""

import warnings

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.stores.fakes import Wrapper
from helpers.strict_duck import StrictDecoder
from zarr.storage import MemoryStore

from xarray_gpuzarr import GpuZarrWarning
from xarray_gpuzarr.backend import chunking as chunkmanager
from xarray_gpuzarr.backend import datasets, lazy_array, open_options
from xarray_gpuzarr.decoders import choice
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.advice import advise, advise_each_time


@pytest.fixture(autouse=True)
def _never_warned(monkeypatch):
    monkeypatch.setattr(advice, "warned", set())


@pytest.fixture
def store():
    """A variable of 12 unsharded chunks."""
    store = MemoryStore()
    xr.Dataset({"t": ("x", np.arange(12.0))}).to_zarr(store, consolidated=False, encoding={"t": {"chunks": (1,)}})
    return store


def open_store(store, **options):
    return xr.open_dataset(store, engine="gpuzarr", consolidated=False, **options)


def test_a_subject_is_warned_of_once():
    with warnings.catch_warnings(record=True, action="always") as warned:
        advise("first", "one", found="", do="")
        advise("first", "two", found="", do="")
        advise("second", "three", found="", do="")

    assert [str(w.message).splitlines()[0] for w in warned] == ["one", "three"]


def test_what_may_spoil_data_is_warned_of_each_time_also_by_one_line():
    with warnings.catch_warnings(record=True, action="default") as warned:
        for _ in range(2):
            advise_each_time("an index is out of order", found="", do="")

    assert len(warned) == 2


@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_tasks_point_at_the_line_that_computes(scheduler):
    task = dask.delayed(advise)("task", "it is slow", found="a number", do="change it")

    with pytest.warns(GpuZarrWarning) as warned:
        task.compute(scheduler=scheduler)

    assert warned[0].filename == __file__


def test_a_cell_of_a_notebook_is_pointed_at():
    cell = "advise('cell', 'it is slow', found='a number', do='change it')"
    with pytest.warns(GpuZarrWarning) as warned:
        exec(compile(cell, "/tmp/ipykernel_1/2.py", "exec"), {"advise": advise, "__name__": "__main__"})

    assert (warned[0].filename, warned[0].lineno) == ("/tmp/ipykernel_1/2.py", 1)


@pytest.mark.parametrize(
    ("many", "small", "chunks", "warns"),
    [(12, 9, {}, True), (13, 9, {}, False), (12, 8, {}, False), (12, 9, {"x": 2}, False), (12, 9, None, False)],
)
def test_many_small_tasks_are_advised_against(store, monkeypatch, many, small, chunks, warns):
    monkeypatch.setattr(chunkmanager, "MANY_TASKS", many)
    monkeypatch.setattr(chunkmanager, "SMALL_TASK_NBYTES", small)

    with warnings.catch_warnings(record=True, action="always") as warned:
        open_store(store, chunks=chunks, device="host")

    told = [str(w.message) for w in warned if w.category is GpuZarrWarning]
    assert len(told) == warns
    assert all("becomes 12 dask tasks" in text and "8 bytes a task" in text for text in told)


LAT = "chunks= has no effect for 'lat', which is no dimension of the dataset\n  found: dimensions: 'time', 'latitude'"


@pytest.fixture
def fields():
    """A variable of two dimensions."""
    store = MemoryStore()
    encoding = {"t": {"chunks": (1, 1)}}
    xr.Dataset({"t": (("time", "latitude"), np.ones((4, 6)))}).to_zarr(store, consolidated=False, encoding=encoding)
    return store


@pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])
def test_chunks_of_a_dimension_that_is_called_otherwise_are_told_of(fields, kind):
    with pytest.warns(GpuZarrWarning) as warned:
        open_store(kind(fields), device="host", chunks={"lat": 3, "time": 2})

    (told,) = warned
    assert str(told.message) == f"{LAT}\n  do:    name one of these (perhaps 'latitude'), or leave 'lat' out"
    assert told.filename == __file__


@pytest.mark.parametrize("chunks", [{}, {"latitude": 3}, {"time": "auto"}, "auto", 2, None], ids=str)
def test_nothing_is_told_of_chunks_that_have_an_effect(fields, chunks, recwarn):
    open_store(fields, device="host", chunks=chunks)

    assert not recwarn


def test_a_variable_of_float_dtype_that_is_called_otherwise_is_told_of(fields):
    with pytest.warns(GpuZarrWarning) as warned:
        open_store(fields, device="host", float_dtype={"tt": "float32"})

    (told,) = warned
    assert "float_dtype= has no effect for 'tt', which is no variable of the dataset" in str(told.message)
    assert "(perhaps 't')" in str(told.message)


@pytest.mark.parametrize("float_dtype", [None, "float32", {"t": "float32"}, {}], ids=str)
def test_nothing_is_told_of_a_float_dtype_that_has_an_effect(fields, float_dtype, recwarn):
    open_store(fields, device="host", float_dtype=float_dtype)

    assert not recwarn


def test_chunks_of_a_tree_may_be_those_of_some_groups(fields, recwarn):
    xr.Dataset({"s": ("x", np.ones(3))}).to_zarr(fields, group="a", consolidated=False)

    xr.open_datatree(fields, engine="gpuzarr", consolidated=False, device="host", chunks={"x": 3, "time": 2})

    assert not recwarn


@pytest.mark.parametrize(
    ("missing", "warns"),
    [
        (["CuPy"], True),
        (["CuPy", "RMM", "nvCOMP (nvidia-libnvcomp)"], True),
        (["the NVIDIA driver (libcuda)", "CuPy"], False),
        (["a GPU that this process may use"], False),
    ],
)
def test_a_gpu_without_packages_is_told_of(monkeypatch, missing, warns):
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: missing)

    with warnings.catch_warnings(record=True, action="always") as warned:
        assert choice.resolve_device("auto") == "host"
        assert choice.resolve_device("auto") == "host"
        assert choice.resolve_device("host") == "host"

    assert len(warned) == warns
    assert all(", ".join(missing) in str(w.message) for w in warned)
    assert all("xarray-gpuzarr[cuda13]" in str(w.message) for w in warned)


@pytest.mark.parametrize(
    ("where", "large_nbytes", "warns"),
    [("host, then one copy to the device", 96, True), ("host", 97, False), ("cuda", 96, False)],
)
def test_a_large_variable_that_the_gpu_cannot_decode_is_told_of(store, monkeypatch, where, large_nbytes, warns):
    class OnDevice(StrictDecoder):
        def route(self, spec, cast):
            return Route(where=where, why="codec x has no device decoder")

    monkeypatch.setattr(datasets, "_LARGE_NBYTES", large_nbytes)
    monkeypatch.setattr(open_options, "resolve_device", lambda _: "cuda")
    monkeypatch.setattr(lazy_array, "decoder_for", lambda _: OnDevice())

    with warnings.catch_warnings(record=True, action="always") as warned:
        open_store(store)
        open_store(store)

    assert len(warned) == warns
    assert all("'t' is decoded on the host" in str(w.message) for w in warned)
    assert all("codec x has no device decoder" in str(w.message) for w in warned)
