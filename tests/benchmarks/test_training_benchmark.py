"""The benchmark of training: every loader gives the same crops, at places that say nothing of chunks."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import settings_taken_back
from helpers.here_and_now import HereAndNow
from helpers.stores.range_server import RangeServer

from benchmarks import __main__ as command
from benchmarks.arrays.stores import write_workload
from benchmarks.training import cases, child, loaders
from benchmarks.training.feeds import BATCH, PREFETCH, Feed
from benchmarks.training.loaders import LOADERS
from xarray_gpuzarr.machine.bench.crew import ReaderProcesses
from xarray_gpuzarr.machine.bench.readers import AbsentError
from xarray_gpuzarr.machine.bench.results import Results
from xarray_gpuzarr.machine.bench.session import Session

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

    monkeypatch.setattr("xarray_gpuzarr.machine.bench.crew.process", HereAndNow)
    with settings_taken_back():
        yield


def feed_of(layout, folder, crop=(3, 6, 8), n_batches=3):
    path = write_workload(LAYOUTS[layout], folder)
    return Feed(workload=LAYOUTS[layout], path=path, crop=crop, n_batches=n_batches)


@pytest.mark.every_value
@pytest.mark.parametrize("loader", [name for name, loader in LOADERS.items() if loader.in_order])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("served", [False, True])
def test_every_loader_gives_the_crops_of_the_feed(folder, url, loader, layout, served):
    if LOADERS[loader].needs:
        pytest.importorskip(LOADERS[loader].needs)
    feed = replace(feed_of(layout, folder), url=url if served else "")
    values = LAYOUTS[layout].values()

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


def test_a_loader_of_whole_samples_takes_no_part_where_crops_are_asked_for(folder):
    with pytest.raises(AbsentError, match="whole samples"):
        LOADERS["insitubatch"].open(feed_of("chunks", folder))


def test_crops_lie_inside_and_none_comes_twice(folder):
    feed = feed_of("chunks", folder, crop=(1, 6, 8), n_batches=10)
    start = feed.start.reshape(-1, 3)

    assert len(np.unique(start, axis=0)) == feed.n_samples == 160
    assert (start >= 0).all()
    assert (start + feed.crop <= WORKLOAD.shape).all()
    assert start.tolist() != sorted(start.tolist())
    np.testing.assert_array_equal(feed.start, replace(feed).start)
    assert feed.nbytes == 160 * 6 * 8 * 4


def test_no_more_batches_are_under_way_than_ours_reads_ahead():
    count, most = Counter(), []

    def start(number):
        count["begun"] += 1
        most.append(count["begun"] - count["ended"])

        def finish():
            count["ended"] += 1
            return number

        return finish

    for length in (0, 1, PREFETCH, 7):
        assert list(loaders._ahead(start, list(range(length)))) == list(range(length))
    assert max(most) == PREFETCH


def run_case(scale, folder):
    case = cases.cases(scale, folder, ReaderProcesses())[0]
    return {row.name: row for row in Session(Results({}, None), n_rounds=1).run(case).rows}


def test_a_case_compares_what_loaders_give(here, tmp_path, monkeypatch):
    wrong = loaders.Loader(name="wrong", open=lambda feed: lambda: iter(np.zeros((feed.n_batches, BATCH, *feed.crop))))
    lost = loaders.Loader(name="lost", open=lambda feed: pytest.fail("opened"), needs="nonesuch")
    some = {name: LOADERS[name] for name in ("zarr default, threads", "gpuzarr batches, no dask")}
    monkeypatch.setattr(cases, "LOADERS", some | {"wrong": wrong, "lost": lost})
    monkeypatch.setattr("benchmarks.training.child.LOADERS", cases.LOADERS)

    rows = run_case(1e-3, tmp_path)

    assert [row.status for row in rows.values()] == ["measured", "measured", "failed", "absent"]
    assert "other values" in rows["wrong"].note
    assert rows["lost"].note == "not installed (pip install nonesuch)"


def test_cases_are_every_store_crop_and_place(tmp_path):
    names = [case.name for case in cases.cases(1, tmp_path, ReaderProcesses())]

    assert len(set(names)) == 20
    assert names[0] == "training/1x256x256 of chunks of 64 kB"
    assert names[-1] == "training/4x64x64 of chunks of 1 MB in shards, 10 ms"
    assert [workload.chunk_nbytes for workload in cases._workloads()] == [2**16, 2**16, 2**20, 2**20]
    assert [case.name for case in cases.cases(1e-3, tmp_path, ReaderProcesses())] == [names[0], names[-1]]


def test_the_command_knows_the_cases_of_training(capsys):
    assert command.main(["--only", "nonesuch"]) == 2
    assert "training/4x64x64 of chunks of 64 kB in shards" in capsys.readouterr().err


def test_crops_of_the_cases_begin_anywhere_in_a_chunk():
    for crop in cases._CROPS:
        starts = {n // 3 * number % 128 for n in crop[1:] for number in range(10)}
        assert len(starts) == 10
        assert Feed(workload=WORKLOAD, crop=crop, n_batches=1).stride[1:] == (crop[1] // 3, crop[2] // 3)


@pytest.mark.parametrize("workload", list(cases._workloads()), ids=lambda workload: workload.summary)
def test_crops_and_batches_shrink_with_the_array(workload):
    tiny = Feed(workload=workload, crop=(4, 64, 64), n_batches=10**6).scaled(1e-3)
    assert tiny.workload.nbytes < workload.nbytes / 50
    assert (tiny.start >= 0).all()
    assert (tiny.start + tiny.crop <= tiny.workload.shape).all()
    assert tiny.n_samples <= np.prod(tiny.grid) < tiny.n_samples + BATCH
