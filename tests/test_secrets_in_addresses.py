"""Passwords and signatures in the addresses of stores: used for every request, and shown nowhere."""

import base64
import io
import pickle
import shutil
import time
import traceback

import cloudpickle
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.datasets import open_ours
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_http
from rich.console import Console
from zarr.storage import FsspecStore, LoggingStore

import xarray_gpuzarr
from xarray_gpuzarr import (
    ArrayTypeError,
    GpuZarrError,
    GpuZarrWarning,
    OptionError,
    StoreReadError,
    batches,
    explain,
    read_array,
)
from xarray_gpuzarr.backend.lazy_array import find_lazy_array
from xarray_gpuzarr.cli import main
from xarray_gpuzarr.cli.failures import Address
from xarray_gpuzarr.errors import masked, visible
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.process import advice, progress_bar
from xarray_gpuzarr.read import stored_array

pytestmark = [pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open"), pytest.mark.timeout(60)]

SECRET = "Tr0ub4dor"
DATA = xr.Dataset({"t": (("y", "x"), np.arange(64.0).reshape(8, 8)), "name": ("z", ["a", "b"])})
ENCODING = {"t": {"chunks": (2, 2), "shards": (4, 4)}}

ADDRESSES = {
    "user": ("http://me:Tr0ub4dor@host/a.zarr", "http://***@host/a.zarr"),
    "token": ("https://Tr0ub4dor@host:80/a.zarr", "https://***@host:80/a.zarr"),
    "signature": ("http://host/a.zarr?X-Sig=Tr0ub4dor&x", "http://host/a.zarr?***"),
    "both": ("HTTP://me:Tr0ub4dor@host/a?sig=Tr0ub4dor", "HTTP://***@host/a?***"),
    "at": ("ftp://me:a@Tr0ub4dor@host/a", "ftp://***@host/a"),
    "slash": ("s3://AKIA:a/Tr0ub4dor?#@host/a", "s3://***@host/a"),
    "quote": ("http://host/a?sig=it's'Tr0ub4dor", "http://host/a?***"),
    "chain": ("zip://in.zarr::http://me:Tr0ub4dor@host/a.zip", "zip://in.zarr::http://***@host/a.zip"),
    "compound": ("git+https://Tr0ub4dor@host/a", "git+https://***@host/a"),
    "in quotes": ("open('http://me:Tr0ub4dor@host/a?b=c', mode='r')", "open('http://***@host/a?***', mode='r')"),
    "in a sentence": ("(see http://host/a?Tr0ub4dor).", "(see http://host/a?***)."),
    "in JSON": ('{"a":"http://host/a?Tr0ub4dor","b":1}', '{"a":"http://host/a?***","b":1}'),
    "of a store": ("<Store(Http, http://host/a?Tr0ub4dor)>/t/c/0", "<Store(Http, http://host/a?***)>/t/c/0"),
}
"""Text, and how it is shown."""
PLAIN = [
    "http://host:8080/a@b/c",
    "http://[::1]:8080/a@b",
    "abfs://container@account.dfs.core.windows.net/a",
    "github://org:repository@main/a",
    "is it http://host/a? me@host",
    "http://host/a?***/t/c/0",
    "what? a:b@c",
    "memory://140/a",
    "://",
]


@pytest.mark.parametrize(("text", "shown"), ADDRESSES.values(), ids=ADDRESSES)
def test_host_and_path_are_shown_and_the_rest_is_not(text, shown):
    assert masked(text) == visible(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_is_shown(text):
    assert masked(text) == text


@pytest.mark.parametrize("text", [")", "a.", "http://a:b", "?", "://", "@http://a:b", "x"])
def test_long_text_takes_no_long_time(text):
    begin = time.process_time()

    masked(f"http://host/{text * 100_000}@ http://host?{text * 100_000}")

    assert time.process_time() - begin < 10


@pytest.mark.parametrize("address", ["user", "signature", "slash", "chain"])
def test_errors_and_warnings_hold_no_secret(address, monkeypatch):
    monkeypatch.setattr(advice, "warned", set())
    text, shown = ADDRESSES[address]

    error = GpuZarrError(f"cannot open '{text}'", tried=f"GET {text}", found=f"403 of {text}", do=f"open {text} again")
    with pytest.warns(GpuZarrWarning) as caught:
        advice.advise("x", text, found=text, do=text)

    parts = (error.headline, error.tried, error.found, error.do)
    assert parts == (f"cannot open '{shown}'", f"GET {shown}", f"403 of {shown}", f"open {shown} again")
    assert_no_secret(pickle.dumps(error).decode("latin1"), repr(error), str(error), str(GpuZarrError(f"a\n{text}")))
    assert_no_secret(str(caught[0].message))


def assert_no_secret(*texts):
    assert [text for text in texts if SECRET in text] == []


def told(error):
    """Return all that an error of ours says, apart from what its cause says."""
    return ["".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False)), repr(error)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a store, and of one that has a damaged shard."""
    directory = tmp_path_factory.mktemp("served")
    DATA.to_zarr(directory / "a.zarr", encoding=ENCODING)
    shutil.copytree(directory / "a.zarr", directory / "damaged.zarr")
    (directory / "damaged.zarr" / "t" / "c" / "0" / "0").write_bytes(b"no shard")
    with RangeServer(directory) as running:
        yield running


@pytest.fixture(autouse=True)
def _honest(request):
    if "server" in request.fixturenames:
        request.getfixturevalue("server").spoil()


def with_password(server, path):
    return f"{server.url.replace('://', f'://me:{SECRET}@')}/{path}"


def fsspec(server, path):
    return FsspecStore.from_url(with_password(server, path), read_only=True)


STORES = {
    "fsspec": fsspec,
    "obstore": lambda server, path: obstore_http(with_password(server, path), f"?sig={SECRET}", 5),
    "logging": lambda server, path: LoggingStore(fsspec(server, path), log_level="CRITICAL"),
}
stores = pytest.mark.parametrize("store", STORES.values(), ids=STORES)


@stores
@pytest.mark.parametrize("fault", [{"kind": "status", "value": 403}, {"kind": "cut"}], ids=str)
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_a_failed_read_names_host_and_path_and_no_secret(server, store, fault, chunks):
    ds = open_ours(store(server, "a.zarr"), chunks=chunks)
    server.spoil({**fault, "path": "/t/c/"})

    with pytest.raises(StoreReadError) as caught:
        ds.t[:4, :4].load()

    assert f"***@{server.url.removeprefix('http://')}/a.zarr" in caught.value.headline
    assert caught.value.headline.endswith("/t/c/0/0")
    assert_no_secret(*told(caught.value))


@stores
def test_a_damaged_store_is_told_without_secrets(server, store):
    ds = open_ours(store(server, "damaged.zarr"))

    with pytest.raises(GpuZarrError, match="'/t'") as caught:
        ds.load()

    assert f"***@{server.url.removeprefix('http://')}/damaged.zarr" in caught.value.tried
    assert_no_secret(*told(caught.value))


@stores
def test_what_is_opened_shows_no_secret(server, store, monkeypatch):
    opened = store(server, "a.zarr")
    lazy, tasks = open_ours(opened), open_ours(opened, chunks={})
    array = zarr.open_array(opened, path="t", mode="r")
    monkeypatch.setattr(progress_bar, "DELAY_S", -1.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=200)

    with xarray_gpuzarr.progress(console=console):
        tasks.compute()

    assert_no_secret(console.file.getvalue())
    for ds in (lazy, tasks):
        explained = ds.gpuzarr.explain()
        shown = [repr(ds), ds._repr_html_(), repr(ds.gpuzarr), str(explained), repr(explained), explained._repr_html_()]
        assert_no_secret(*shown, repr(ds.t), ds.t.gpuzarr._repr_html_(), repr(batches(ds, {"y": 2}, 2)))
    assert_no_secret(*map(str, tasks.t.data.dask), *map(repr, dict(tasks.t.data.dask).values()), repr(tasks.t.data))
    stored = find_lazy_array(lazy.t.variable._data).stored
    assert_no_secret(repr(find_lazy_array(lazy.t.variable._data)), repr(stored), repr(stored.source))
    assert_no_secret(repr(explain(array)), str(explain(array)), repr(object_source(opened)))
    assert_no_secret(
        repr(stored_array(zarr.open_array(opened, path="name", mode="r")))
    )  # text, which zarr-python reads


PASSWORD = f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}"


@pytest.mark.parametrize(("kind", "authorization"), [("fsspec", PASSWORD), ("logging", PASSWORD), ("obstore", None)])
def test_pickled_stores_read_with_their_password(server, kind, authorization):
    """obstore sends no password that is part of an address."""
    there = cloudpickle.loads(cloudpickle.dumps(open_ours(STORES[kind](server, "a.zarr"), chunks={})))
    server.requests()

    xr.testing.assert_equal(there.compute(), DATA)

    assert {request["headers"].get("authorization") for request in server.requests()} == {authorization}


def test_stores_with_other_secrets_are_other_stores(server):
    one, other = fsspec(server, "a.zarr"), FsspecStore.from_url(f"{server.url}/a.zarr", read_only=True)

    assert object_source(one).identity == object_source(fsspec(server, "a.zarr")).identity
    assert object_source(one).identity != object_source(other).identity
    assert SECRET not in str(object_source(one).identity)


@pytest.mark.parametrize("path", ["a.zarr", "damaged.zarr", "none.zarr", "a.zarr/t", f"a.zarr?sig={SECRET}"])
@pytest.mark.parametrize(
    "arguments", [("info",), ("info", "--json"), ("info", "--group", "none"), ("bench", "--group", "none")]
)
def test_commands_show_no_secret(server, capsys, path, arguments):
    main([arguments[0], with_password(server, path), *arguments[1:]])

    out, err = capsys.readouterr()
    assert f"//***@{server.url.removeprefix('http://')}" in out + err
    assert_no_secret(out, err)


def test_a_comparison_of_readers_shows_no_secret(server, capsys):
    server.spoil({"kind": "status", "value": 403, "path": "/t/c/"})

    assert main(["bench", with_password(server, "a.zarr")]) == 1

    out, err = capsys.readouterr()
    assert "403" in out
    assert_no_secret(out, err)


def test_arguments_that_no_command_knows_show_no_secret(server, capsys):
    url = with_password(server, f"?sig={SECRET}")

    with pytest.raises(SystemExit):
        main(["info", "a.zarr", url])

    assert_no_secret(*capsys.readouterr(), repr(Address(store=url)))


REFUSED = {
    "read_array": read_array,
    "explain": explain,
    "batches": lambda url: batches(url, {"x": 1}, 1),
    "device": lambda url: xr.open_dataset(url, engine="gpuzarr", device=url),
    "mode": lambda url: xr.open_dataset(url, engine="gpuzarr", mode=url),
    "storage": lambda url: xr.open_dataset(url, engine="gpuzarr", storage=url),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_arguments_that_are_refused_show_no_secret(server, refused):
    with pytest.raises((ArrayTypeError, OptionError)) as caught:
        refused(with_password(server, f"a.zarr?sig={SECRET}"))

    assert_no_secret(*told(caught.value))
