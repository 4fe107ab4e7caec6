"""Why a store cannot be opened, and what to do about each cause. Commands open stores inside `naming_failures`.

The store is looked at once more where that tells more: which groups there are, and whether an array was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zarr

from xarray_gpuzarr.backend.open_errors import ALONE, in_folder, node_at
from xarray_gpuzarr.errors import GpuZarrError, NoGroupError, StoreReadError, perhaps

_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
"""Names of exceptions of botocore, google.auth and azure.core: none of them is a PermissionError."""
_NOTHING = "nothing is there"
_USUAL = "check the path, and that the packages which this kind of store or file needs are installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address that a command was told to open."""

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
        """Part of the address before ``://``; empty for a local path."""
        before, mark, _ = self.store.partition("://")
        return before.rpartition("::")[2].lower() if mark and before != "file" else ""

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine: a folder, or a file such as a zip file."""
        outermost = self.store.rpartition("::")[2]
        return "://" not in outermost or outermost.startswith("file://")

    def open(self, path: str) -> Any:
        """Return the zarr array or group at a path in the store, or None if there is none that can be opened."""
        return node_at(self.store, path, self.given)


@contextmanager
def naming_failures(address: Address, tried: str) -> Iterator[None]:
    """Turn what a store, a file system or a codec raises inside a ``with`` block into a `StoreReadError`.

    Where nothing is at a local path it is a `NoGroupError`.
    """
    try:
        yield
    except GpuZarrError:
        raise
    except Exception as err:  # stores, files and drivers of any kind; whatever they raise is named
        cause, do = _cause(err, address)
        said = f"{type(err).__name__}: {err}"
        kind = NoGroupError if cause == _NOTHING else StoreReadError
        raise kind(
            f"cannot open '{address.store}'", tried=tried, found=f"{cause} ({said})" if cause else said, do=do
        ) from err


def _cause(err: BaseException | None, address: Address) -> tuple[str, str]:
    """Return what is wrong, empty if the error says it, and what to do."""
    errors, link = list[BaseException](), err
    while link is not None and link not in errors:
        errors.append(link)
        link = link.__cause__ or link.__context__
    if any(isinstance(e, PermissionError) or type(e).__name__ in _NO_CREDENTIALS for e in errors):
        credentials = (
            "give credentials that may read it, in the environment or with --storage-options KEY=VALUE, as its fsspec "
            "client calls them; for public data, anon=true on S3 and token=anon on Google Cloud"
        )
        local = f"let this user read it, and enter all folders above it: namei -l '{address.store}' shows who may"
        return "", credentials if address.scheme else local
    missing = [e.name for e in errors if isinstance(e, ImportError)]  # fsspec raises one without a name from another
    if missing:
        package = next(filter(None, missing), None)
        return "", f"pip install {package}" if package else _USUAL
    if any(str(e).startswith("Protocol not known") for e in errors):
        return "", "mend what stands before ://; usual are s3, gs, az, https and file"
    if isinstance(err, TypeError) and "storage_options" in str(err) and not address.scheme:
        return "", "leave --storage-options out: a local path has none"
    try:
        return _on_place(address)
    except Exception:  # noqa: BLE001  # one failure is being named already
        return "", _USUAL


def _on_place(address: Address) -> tuple[str, str]:
    """Return what lies where a group was expected, and what to do."""
    node = address.open(address.group)
    if isinstance(node, zarr.Array) and not address.group:
        parent, _, name = address.store.rstrip("/").rpartition("/")
        above = replace(address, store=parent or ".")
        return _if_apart(above.open("")) or (
            "an array, not a group",
            f"give the group that holds {name!r}: {above.store}",
        )
    apart = _if_apart(node)
    if apart:
        return apart
    path = Path(address.store)
    if address.group or address.scheme or node is not None or not path.is_dir():
        if "::" in address.store or "://" in address.store or path.exists():
            return "", _USUAL
        beside = path.absolute().parent
        if not beside.is_dir():
            return _NOTHING, f"check the path: there is no folder '{beside}'"
        return _NOTHING, f"check the path{perhaps(path.name, sorted(each.name for each in beside.iterdir()))}"
    return in_folder(path) or ("", _USUAL)


def _if_apart(node: Any) -> tuple[str, str] | None:
    """Say so if a node is a group whose arrays are no dataset."""
    why = why_apart(dict(sorted(node.arrays()))) if isinstance(node, zarr.Group) else ""
    return (why, f"gpuzarr info and gpuzarr bench take single arrays; {ALONE}") if why else None


def why_apart(arrays: Mapping[str, zarr.Array[Any]]) -> str:
    """Say why arrays of one group do not fit together as a dataset; empty if they do, as far as metadata tell."""
    lengths: dict[str, tuple[str, int]] = {}
    for name, array in arrays.items():
        dims = dims_of(array)
        if dims is None:
            return f"The dimensions of {name!r} have no names, which a dataset needs"
        for dim, length in zip(dims, array.shape, strict=False):
            other, known = lengths.setdefault(dim, (name, length))
            if length != known:
                return f"{dim!r} is {known} long in {other!r} and {length} in {name!r}: these arrays are no dataset"
    return ""


def dims_of(array: zarr.Array[Any]) -> list[str] | None:
    """Return the names of dimensions that xarray looks for, or None if one of them has no name."""
    dims = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return list(dims) if isinstance(dims, list | tuple) and None not in dims else None
