"""Why a store cannot be opened, and what to do about each cause. Commands open stores inside `naming_failures`.

The store is looked at once more where that tells more: which groups there are, and whether an array was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import zarr

from xarray_gpuzarr.backend.absent_groups import in_folder
from xarray_gpuzarr.errors import GpuZarrError, StoreReadError

_PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
    "ssh": "paramiko",
}
"""What fsspec needs beside itself for a kind of address, as of fsspec 2026.2."""
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
"""Names of exceptions of botocore, google.auth and azure.core: none of them is a PermissionError."""
_USUAL = "check the path, and that the packages which this kind of store or file needs are installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a command was told to open."""

    store: str = field(repr=False)
    """Path or URL; may hold secrets."""
    group: str = ""
    """Path of the group in the store, without a slash at either end."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For the fsspec client of a remote store; may hold secrets."""

    @property
    def given(self) -> dict[str, Any]:
        """The keyword of xarray and zarr-python that hands on the storage options; none if there are none."""
        return {"storage_options": dict(self.storage_options)} if self.storage_options else {}

    @property
    def name(self) -> str:
        """The last part of the path."""
        return f"{self.store}/{self.group}".rstrip("/").rpartition("/")[2]

    @property
    def scheme(self) -> str:
        """What stands before ``://``; empty for a local path."""
        before, mark, _ = self.store.partition("://")
        return before.rpartition("::")[2].lower() if mark and before != "file" else ""

    def open(self, path: str) -> Any:
        """Return the zarr array or group at a path in the store, or None if there is none that can be opened."""
        try:
            return zarr.open(self.store, path=path, mode="r", **self.given)
        except Exception:  # noqa: BLE001  # one failure is being named already; this only looks for its cause
            return None


@contextmanager
def naming_failures(address: Address, tried: str) -> Iterator[None]:
    """Turn what a store, a file system or a codec raises inside a ``with`` block into a `StoreReadError`."""
    try:
        yield
    except GpuZarrError:
        raise
    except Exception as err:  # stores, files and drivers of any kind; whatever they raise is named
        found, do = _cause(err, address)
        said = f"{type(err).__name__}: {err}"
        raise StoreReadError(
            f"cannot open '{address.store}'", tried=tried, found=f"{found} ({said})" if found else said, do=do
        ) from err


def _cause(err: BaseException, address: Address) -> tuple[str, str]:
    """Return what is wrong, empty if the error says it, and what to do."""
    errors = _chain(err)
    if any(isinstance(e, PermissionError) or type(e).__name__ in _NO_CREDENTIALS for e in errors):
        return "", _on_permission(address)
    missing = next((e for e in errors if isinstance(e, ImportError)), None)
    if missing is not None:
        return "", _on_missing_package(missing, address)
    if any(str(e).startswith("Protocol not known") for e in errors):
        return "", f"mend what stands before ://; usual are {', '.join(_PACKAGES)}, file"
    if isinstance(err, TypeError) and "storage_options" in str(err) and not address.scheme:
        return "", "leave --storage-options out: a local path has none"
    try:
        return _on_place(address)
    except Exception:  # noqa: BLE001  # as in `Address.open`
        return "", _USUAL


def _chain(err: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while err is not None and err not in found:
        found.append(err)
        err = err.__cause__ or err.__context__
    return found


def _on_permission(address: Address) -> str:
    if address.scheme:
        return (
            "give credentials that may read it, in the environment or with --storage-options KEY=VALUE, as its fsspec "
            "client calls them; for public data, anon=true on S3 and token=anon on Google Cloud"
        )
    return f"let this user read it, and enter all folders above it: namei -l '{address.store}' shows who may"


def _on_missing_package(err: ImportError, address: Address) -> str:
    package = _PACKAGES.get(address.scheme, err.name)
    if package is None:
        return _USUAL
    fsspec = "fsspec " if address.scheme and find_spec("fsspec") is None else ""
    return f"pip install {fsspec}{package}"


def _on_place(address: Address) -> tuple[str, str]:
    """Look what is where a group was expected."""
    node = address.open(address.group)
    if isinstance(node, zarr.Array) and not address.group:
        parent, _, name = address.store.rstrip("/").rpartition("/")
        return "an array, not a group", f"give the group that holds {name!r}: {parent or '.'}"
    path = Path(address.store)
    if address.group or address.scheme or node is not None or not path.is_dir():
        return "", _USUAL
    return in_folder(path) or ("", _USUAL)
