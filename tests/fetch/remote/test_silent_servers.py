"""Servers that never answer: whoever reads from others, or from the same one alone, waits for none of them."""

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.interrupts import interrupt
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS

from xarray_gpuzarr import StoreReadError, configure, read_array, zarr_pipeline
from xarray_gpuzarr.fetch.remote.under_way import Reply, RequestsUnderWay, event_loop, run_on_loop

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:Consolidated metadata")]

DATA = np.arange(400.0)
HTTP = ["obstore http", "fsspec http"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    ds = xr.Dataset({"silent": ("x", DATA), "sound": ("x", DATA)})
    chunks = {name: {"chunks": (1,)} for name in ds.data_vars}
    ds.to_zarr(path / "s.zarr", zarr_format=3, consolidated=True, encoding=chunks)
    return path


@pytest.fixture
def healthy(folder):
    with RangeServer(folder) as server:
        yield server


@contextmanager
def silent(folder, path):
    """Run a server that never answers requests below a path; at the end, whoever waits for it gets an error."""
    with RangeServer(folder) as server:
        server.spoil({"kind": "hang", "path": path})
        yield server


def opened(server, client, name):
    return zarr.open_array(CLIENTS[client](server.url, "s.zarr"), path=name, mode="r")


@pytest.mark.parametrize("client", HTTP)
def test_a_silent_server_keeps_no_read_of_another_waiting(folder, healthy, client):
    other = opened(healthy, client, "sound")
    with ThreadPoolExecutor(2) as pool:
        with silent(folder, "/sound/c") as server:
            stuck = [pool.submit(read_array, opened(server, client, "sound"), device="host") for _ in range(2)]
            server.wait_for(64)

            np.testing.assert_array_equal(read_array(other, slice(5), device="host"), DATA[:5])

            assert not any(read.done() for read in stuck)
        assert all(isinstance(read.exception(), StoreReadError) for read in stuck)


@pytest.mark.parametrize("client", HTTP)
def test_a_read_without_answers_keeps_no_other_of_its_server_waiting(folder, client, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.process.fetch_options.in_force.options", None)
    configure(max_requests=5)
    with ThreadPoolExecutor(1) as pool:
        with silent(folder, "/silent/c") as server:
            stuck = pool.submit(read_array, opened(server, client, "silent"), device="host")
            server.wait_for(4)

            np.testing.assert_array_equal(read_array(opened(server, client, "sound"), device="host"), DATA)

            assert not stuck.done()
        assert isinstance(stuck.exception(), StoreReadError)


def test_a_silent_server_keeps_no_read_of_another_through_the_pipeline_waiting(folder, healthy):
    with zarr_pipeline():
        other = opened(healthy, "obstore http", "sound")
    with ThreadPoolExecutor(40) as pool:
        with silent(folder, "/sound/c") as server:
            with zarr_pipeline():
                array = opened(server, "obstore http", "sound")
            stuck = [pool.submit(array.__getitem__, slice(n, n + 2)) for n in range(40)]
            server.wait_for(60)

            np.testing.assert_array_equal(other[:5], DATA[:5])

            assert not any(read.done() for read in stuck)
        assert all(isinstance(read.exception(), StoreReadError) for read in stuck)


def test_a_silent_server_keeps_no_asynchronous_load_of_another_waiting(folder, healthy):
    def lazy(server):
        store = CLIENTS["obstore http"](server.url, "s.zarr")
        return xr.open_dataset(store, engine="gpuzarr", device="host").sound

    async def load():
        with silent(folder, "/sound/c") as server:
            array = lazy(server)
            stuck = [asyncio.create_task(array[n : n + 1].load_async()) for n in range(40)]
            await asyncio.to_thread(server.wait_for, 30)

            loaded = await lazy(healthy)[:5].load_async()

            assert not any(read.done() for read in stuck)
        errors = await asyncio.gather(*stuck, return_exceptions=True)
        return loaded.values, errors

    values, errors = asyncio.run(load())
    np.testing.assert_array_equal(values, DATA[:5])
    assert all(isinstance(error, StoreReadError) for error in errors)


# ---- requests that are begun on the event loop, and given up by threads


def test_a_request_that_cannot_begin_spoils_no_other():
    def fail():
        raise LookupError("gone")

    async def answer():
        return 1

    replies = RequestsUnderWay().start(event_loop("a"), [answer, fail, answer])

    assert (replies[0].result(10), replies[2].result(10)) == (1, 1)
    with pytest.raises(LookupError, match="gone"):
        replies[1].result(10)


def test_requests_that_are_given_up_while_they_begin():
    under_way = RequestsUnderWay()

    async def hang():
        under_way.give_up()  # as another thread may at this point
        await asyncio.sleep(60)

    replies = under_way.start(event_loop("a"), [hang, hang])

    for reply in replies:
        with pytest.raises(CancelledError):
            reply.result(10)
    assert not under_way


class Hanging:
    """A request that is never answered."""

    def __init__(self):
        self.n_begun = 0
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def __call__(self):
        self.n_begun += 1
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_requests_that_are_given_up_are_cancelled_and_later_ones_do_not_begin():
    under_way, request = RequestsUnderWay(), Hanging()
    earlier = under_way.start(event_loop("a"), [request])
    assert request.begun.wait(10)

    under_way.give_up()
    later = under_way.start(event_loop("a"), [request])

    for (reply,) in (earlier, later):
        with pytest.raises(CancelledError):
            reply.result(5)
    assert request.n_begun == 1
    assert not under_way


def test_a_request_is_cancelled_if_the_wait_for_it_is_interrupted(monkeypatch):
    request = Hanging()
    monkeypatch.setattr(Reply, "result", lambda *_: (request.begun.wait(10), interrupt()))

    with pytest.raises(KeyboardInterrupt):
        run_on_loop("a", request)

    assert request.cancelled.wait(5)
