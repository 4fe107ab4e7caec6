"""What the user gave to a client goes with every request of ours, as with zarr-python's through the same client."""

import pickle
from base64 import b64encode

import numpy as np
import pytest
import zarr
from helpers.data.corpus import write
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_options, s3fs_options
from helpers.stores.s3_server import REGION
from obstore.store import HTTPStore, S3Store
from s3fs import S3FileSystem
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.fetch import index_cache, object_source

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = np.arange(64, dtype="f4")
OF_ONE_REQUEST = {"range", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request"}

KEY, OWNER = {"SSECustomerKey": "k" * 32, "SSECustomerAlgorithm": "AES256"}, {"ExpectedBucketOwner": "123456789012"}
OF_WRITES = {"ServerSideEncryption": "aws:kms"}  # means nothing to a read, and s3fs leaves it out
S3FS_OPTIONS = {
    "none": {},
    "requester pays": {"requester_pays": True},
    "requester pays, by its name in the protocol": {"s3_additional_kwargs": {"RequestPayer": "requester"}},
    "a key of the customer": {"s3_additional_kwargs": KEY},
    "an owner": {"s3_additional_kwargs": OWNER},
    "all of these": {"requester_pays": True, "s3_additional_kwargs": KEY | OWNER | OF_WRITES},
    "versions": {"version_aware": True, "requester_pays": True},
    "nobody": {"anon": True, "key": None, "secret": None},
    "a name of the user's": {"config_kwargs": {"user_agent_extra": "tests/1.0"}},
}

HTTP_OPTIONS = {
    "none": {},
    "headers": {"headers": {"X-Token": "abc", "Authorization": "Bearer xyz"}},
    "headers of the session": {"client_kwargs": {"headers": {"X-Token": "abc"}}},
    "basic": {"client_kwargs": {"headers": {"Authorization": f"Basic {b64encode(b'me:secret').decode()}"}}},
    "cookies": {"cookies": {"session": "42"}},
    "an encoded address": {"encoded": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    store = LocalStore(directory / "bucket" / "s.zarr")
    write(store, DATA, name="sharded", chunks=(8,), shards=(32,), compressors=None)
    write(store, DATA, name="unsharded", chunks=(32,), compressors=None)
    with RangeServer(directory) as running:
        yield running


def sent(server, read):
    """Return what the requests of a read for data say of who asks and how, as a set."""
    server.requests()
    np.testing.assert_array_equal(read(), DATA[:8])
    for request in (requests := server.requests()):
        words = request["headers"].get("authorization", "")
        if words.startswith("AWS4"):  # signed, with the time
            request["headers"]["authorization"] = words.partition("/")[0]
    of_data = [r for r in requests if r["method"] == "GET" and "/c/" in r["path"]]
    assert of_data
    return {frozenset(said for said in r["headers"].items() if said[0] not in OF_ONE_REQUEST) for r in of_data}


def assert_said_alike(server, store, name):
    """Compare what our requests say with what zarr-python's do."""
    index_cache.cache.clear()
    array = zarr.open_array(store, path=name, mode="r")
    assert sent(server, lambda: read_array(array, slice(8), device="host")) == sent(server, lambda: array[:8])


def _as_in_2025(self, method, *akwarglist, **kwargs):
    """`S3FileSystem._get_s3_method_kwargs` up to 2026.4: `req_kw` is added by each caller."""
    additional_kwargs = self.s3_additional_kwargs.copy()
    for akwargs in akwarglist:
        additional_kwargs.update(akwargs)
    additional_kwargs.update(kwargs)
    return self._filter_kwargs(method, additional_kwargs)


async def _cat_file_as_in_2025(self, path, version_id=None, start=None, end=None):
    bucket, key, version = self.split_path(path)
    limits = {} if start is None and end is None else {"Range": await self._process_limits(path, start, end)}
    named = {"VersionId": version_id or version} if version_id or version else {}
    response = await self._call_s3("get_object", Bucket=bucket, Key=key, **named, **limits, **self.req_kw)
    async with response["Body"] as body:
        return await body.read()


@pytest.fixture(params=["as installed", "as in 2025"])
def s3fs_version(request, monkeypatch):
    if request.param == "as in 2025":
        monkeypatch.setattr(S3FileSystem, "_get_s3_method_kwargs", _as_in_2025)
        monkeypatch.setattr(S3FileSystem, "_cat_file", _cat_file_as_in_2025)


@pytest.mark.usefixtures("s3fs_version")
@pytest.mark.parametrize("name", ["sharded", "unsharded"])
@pytest.mark.parametrize("options", S3FS_OPTIONS.values(), ids=[*S3FS_OPTIONS])
def test_options_of_s3fs(server, options, name):
    given = {**s3fs_options(server.url), **options}
    store = FsspecStore.from_url("s3://bucket/s.zarr", storage_options=given, read_only=True)

    assert_said_alike(server, store, name)


@pytest.mark.parametrize("name", ["sharded", "unsharded"])
@pytest.mark.parametrize("options", HTTP_OPTIONS.values(), ids=[*HTTP_OPTIONS])
def test_options_of_fsspecs_http(server, options, name):
    store = FsspecStore.from_url(f"{server.url}/bucket/s.zarr", storage_options=options, read_only=True)

    assert_said_alike(server, store, name)


@pytest.mark.parametrize("name", ["sharded", "unsharded"])
@pytest.mark.parametrize("kind", ["http", "s3", "s3, requester pays", "s3, nobody"])
def test_options_of_obstore(server, kind, name):
    shared = obstore_options(30)
    shared["client_options"] |= {"default_headers": {"x-token": "abc"}, "user_agent": "tests/1.0"}
    place = {"prefix": "s.zarr", "endpoint": server.url, "region": REGION, **shared}
    who = {"access_key_id": "id", "secret_access_key": "secret"}
    stores = {
        "http": lambda: HTTPStore.from_url(f"{server.url}/bucket/s.zarr", **shared),
        "s3": lambda: S3Store("bucket", **place, **who),
        "s3, requester pays": lambda: S3Store("bucket", **place, **who, request_payer=True),
        "s3, nobody": lambda: S3Store("bucket", **place, skip_signature=True),
    }

    assert_said_alike(server, ObjectStore(stores[kind](), read_only=True), name)


def identity(store):
    return object_source(store).identity


def http(**client_options):
    return ObjectStore(HTTPStore.from_url("http://127.0.0.1:1/b", client_options=client_options))


HEADERS = {f"x-{n}": f"{n}" for n in range(9)}


def test_stores_that_differ_in_what_they_send_are_not_one():
    """Else one takes shard indexes of the other, where both have objects with equal tags."""
    tenants = [{}, {"x-tenant": "a"}, {"x-tenant": "b"}]
    stores = [http(default_headers=headers) for headers in tenants] + [http(proxy_url="http://127.0.0.1:2")]

    assert len(set(map(identity, stores))) == 4
    assert identity(http(default_headers=HEADERS, timeout="3s")) == identity(
        pickle.loads(pickle.dumps(http(timeout="3s", default_headers=dict(reversed(HEADERS.items())))))
    )


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "opened",
    [
        lambda: FsspecStore(S3FileSystem(anon=True, asynchronous=True, skip_instance_cache=True), path="b/s"),
        lambda: ObjectStore(S3Store("b", skip_signature=True)),
    ],
    ids=["s3fs", "obstore"],
)
def test_servers_that_the_environment_names_are_not_one(monkeypatch, opened, name):
    found = set()
    for port in (1, 2):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        found |= {identity(opened()), identity(opened())}

    assert len(found) == 2
