"""The benchmark of training: every loader gives the same crops, at places that say nothing of chunks."""

from dataclasses import replace

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import settings_taken_back
from helpers.here_and_now import HereAndNow
from helpers.stores.range_server import RangeServer

from benchmarks.arrays.stores import write_workload
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.results import Results
from benchmarks.runner.session import Session
from benchmarks.training import cases, child, loaders
from benchmarks.training.feeds import BATCH, Feed
from benchmarks.training.loaders import LOADERS

WORKLOAD = replace(cases._ARRAY, name="tiny", shape=(8, 30, 40), chunks=(2, 10, 10), codec="zstd 1")
LAYOUTS = {"chunks": WORKLOAD, "shards": replace(WORKLOAD, chunks=(1, 5, 10), shards=(4, 10, 20))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served") / "stores"


@pytest.fixture(scope="module")
def url(folder):
    with RangeServer(folder.parent) as server:
        yield server.url


@pytest.fixture
def here(monkeypatch):
    """Let loaders run in this process."""
    monkeypatch.setattr("benchmarks.runner.crew.process", HereAndNow)
    with settings_taken_back():
        yield


@pytest.mark.every_value
@pytest.mark.parametrize("loader", [name for name, loader in LOADERS.items() if loader.in_order])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("served", [False, True])
def test_every_loader_gives_the_crops_of_the_feed(folder, url, loader, layout, served):
    if LOADERS[loader].needs:
        pytest.importorskip(LOADERS[loader].needs)
    workload = LAYOUTS[layout]
    path = write_workload(workload, folder)
    feed = Feed(workload=workload, path=path, url=url if served else "", crop=(3, 6, 8), n_batches=3)
    values = workload.values()

    with zarr.config.set(dict(LOADERS[loader].settings)):
        epoch = LOADERS[loader].open(feed)
        found = list(epoch())
        again = list(epoch())

    wanted = np.stack([values[box] for batch in feed.boxes for box in batch]).reshape(3, BATCH, *feed.crop)
    np.testing.assert_array_equal(np.stack(found), wanted, strict=True)
    np.testing.assert_array_equal(np.stack(again), wanted, strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("served", [False, True])
def test_samples_in_another_order_are_those_of_the_feed(folder, url, layout, served):
    pytest.importorskip("insitubatch")
    workload = replace(LAYOUTS[layout], shape=(32, 30, 40))
    path = write_workload(workload, folder)
    feed = Feed(workload=workload, path=path, url=url if served else "", crop=(1, 30, 40), n_batches=2)
    wanted = np.stack([workload.values()[box] for batch in feed.boxes for box in batch])
    found = []

    with settings_taken_back(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(child.child, "keep", lambda _, opened, *__: found.append(opened.values()))
        child.open_feed("insitubatch", feed)

    np.testing.assert_array_equal(found[0], wanted, strict=True)


def test_a_case_compares_what_loaders_give(here, tmp_path, monkeypatch):
    wrong = loaders.Loader(name="wrong", open=lambda feed: lambda: iter(np.zeros((feed.n_batches, BATCH, *feed.crop))))
    lost = loaders.Loader(name="lost", open=lambda feed: pytest.fail("opened"), needs="nonesuch")
    some = {name: LOADERS[name] for name in ("zarr default, threads", "gpuzarr batches, no dask")}
    monkeypatch.setattr(cases, "LOADERS", some | {"wrong": wrong, "lost": lost})
    monkeypatch.setattr("benchmarks.training.child.LOADERS", cases.LOADERS)

    case = cases.cases(1e-3, tmp_path, ReaderProcesses())[0]
    rows = {row.name: row for row in Session(Results({}, None), n_rounds=1).run(case).rows}

    assert [row.status for row in rows.values()] == ["measured", "measured", "failed", "absent"]
    assert "other values" in rows["wrong"].note
    assert rows["lost"].note == "not installed (pip install nonesuch)"
