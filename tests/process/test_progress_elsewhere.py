"""``xarray_gpuzarr.progress`` where bars are drawn by a notebook, and where the workers of a cluster read."""

import io
import json

import dask
import numpy as np
import pytest
import xarray as xr
from distributed import progress as progress_of_workers
from helpers.clusters import local_cluster
from rich.console import Console

from xarray_gpuzarr import GpuZarrWarning, progress
from xarray_gpuzarr.process import advice

CELL = """
import time, numpy as np, zarr, xarray_gpuzarr
array = zarr.create_array({}, data=np.zeros((64, 8, 8)), chunks=(1, 8, 8))
with xarray_gpuzarr.progress():
    for _ in range(3):
        xarray_gpuzarr.read_array(array, device="host")
        time.sleep(0.4)
"""


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(advice, "warned", set())
    return Console(file=io.StringIO(), force_terminal=True, width=100)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s.zarr"
    encoding = {"t": {"chunks": (4, 8), "shards": (8, 8)}}
    xr.Dataset({"t": (("y", "x"), np.ones((32, 8)))}).to_zarr(path, encoding=encoding, consolidated=False)
    return path


def test_a_notebook_shows_the_bar_and_nothing_below_it(tmp_path):
    for module in ("ipykernel", "ipywidgets"):
        pytest.importorskip(module)
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}})

    client.execute()

    (output,) = notebook.cells[0].outputs
    assert output.data["text/plain"] == "Output()"
    widget = client.widget_state[output.data["application/vnd.jupyter.widget-view+json"]["model_id"]]
    assert "98.3 kB of 98.3 kB" in json.dumps(widget["outputs"])


def test_workers_of_a_cluster_have_bars_of_dask_as_a_warning_says(store, terminal, capsys):
    with local_cluster(n_workers=1):
        dataset = xr.open_dataset(store, engine="gpuzarr", chunks={}, consolidated=False, device="host")

        with pytest.warns(GpuZarrWarning) as warned, progress(console=terminal):
            dataset.t.sum().compute()
        held = dataset.persist()
        progress_of_workers(held, notebook=False)

    (told,) = warned
    assert told.filename == __file__
    assert [line.strip().split(":")[0] for line in str(told.message).splitlines()[1:]] == ["found", "do"]
    assert str(told.message).endswith("import distributed; ds = ds.persist(); distributed.progress(ds)")
    assert "100% Completed" in capsys.readouterr().out


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_nobody_is_warned_who_computes_here_beside_a_cluster(store, terminal, recwarn, scheduler):
    with local_cluster(n_workers=1), dask.config.set(scheduler=scheduler), progress(console=terminal):
        xr.open_dataset(store, engine="gpuzarr", chunks={}, consolidated=False, device="host").t.sum().compute()

    assert [str(w.message) for w in recwarn if w.category is GpuZarrWarning] == []


def test_workers_that_are_threads_of_this_process_move_the_bar(store, terminal, recwarn, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.process.progress_bar.DELAY_S", -1.0)
    with local_cluster(n_workers=1, processes=False), progress(console=terminal):
        xr.open_dataset(store, engine="gpuzarr", chunks={}, consolidated=False, device="host").t.sum().compute()

    assert "2.0 kB of 2.0 kB" in terminal.file.getvalue()
    assert [str(w.message) for w in recwarn if w.category is GpuZarrWarning] == []
