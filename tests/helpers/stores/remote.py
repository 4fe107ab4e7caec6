"""Stores behind servers on loopback, each opened as its users open it."""

from datetime import timedelta
from functools import cache

import aiohttp
import botocore.loaders
import botocore.retryhandler
from obstore.store import HTTPStore, S3Store
from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore

from helpers.stores.s3_server import REGION

_SHORT = timedelta(milliseconds=10)


def _make_botocore_quick() -> None:
    """Let its clients read what S3 is once in a process, and retry soon: each costs 0.1 s else, a retry 0.5 s."""
    read = cache(botocore.loaders.JSONFileLoader().load_file)
    botocore.loaders.JSONFileLoader.load_file = lambda _, path: read(path)
    botocore.retryhandler.delay_exponential = lambda **_: _SHORT.total_seconds()


_make_botocore_quick()


def obstore_options(timeout_s: float) -> dict:
    """Keywords of obstore's stores: one retry, soon."""
    return {
        "client_options": {"allow_http": True, "timeout": f"{timeout_s}s"},
        "retry_config": {
            "max_retries": 1,
            "retry_timeout": timedelta(seconds=2 * timeout_s),
            "backoff": {"init_backoff": _SHORT, "max_backoff": _SHORT, "base": 2},
        },
    }


def s3fs_options(url: str, key_id: str = "id", secret: str = "secret", timeout_s: float = 30) -> dict:
    """`storage_options` of s3fs for a server on loopback."""
    return {
        "key": key_id,
        "secret": secret,
        "endpoint_url": url,
        "client_kwargs": {"region_name": REGION},
        "config_kwargs": {"read_timeout": timeout_s, "retries": {"max_attempts": 1}},
    }


def obstore_s3(url: str, path: str, key_id: str = "id", secret: str = "secret", timeout_s: float = 30) -> Store:
    bucket, _, prefix = path.partition("/")
    keys = {"access_key_id": key_id, "secret_access_key": secret}
    place = {"prefix": prefix, "endpoint": url, "region": REGION}
    return ObjectStore(S3Store(bucket, **place, **keys, **obstore_options(timeout_s)))


def obstore_http(url: str, path: str, timeout_s: float = 30) -> Store:
    return ObjectStore(HTTPStore.from_url(f"{url}/{path}", **obstore_options(timeout_s)), read_only=True)


def fsspec_s3(url: str, path: str, key_id: str = "id", secret: str = "secret", timeout_s: float = 30) -> Store:
    return FsspecStore.from_url(f"s3://{path}", storage_options=s3fs_options(url, key_id, secret, timeout_s))


def fsspec_http(url: str, path: str, timeout_s: float = 30) -> Store:
    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=timeout_s)}}
    return FsspecStore.from_url(f"{url}/{path}", storage_options=options, read_only=True)


CLIENTS = {"obstore http": obstore_http, "obstore s3": obstore_s3, "fsspec http": fsspec_http, "fsspec s3": fsspec_s3}
"""Name -> function of a server's address and a path, whose first folder is the bucket."""
