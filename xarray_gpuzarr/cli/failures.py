"""`naming_failures`: finds out why a store cannot be opened, and says what to do about it.

If the error does not say enough, it looks at the store again: which groups there are, and whether an array was given
instead of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zarr

from xarray_gpuzarr.backend.open_errors import IMAGE_RECIPES_HINT, explain_folder, node_at
from xarray_gpuzarr.errors import GpuZarrError, NoGroupError, StoreReadError, similar_name_hint

_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
"""Names of exceptions of botocore, google.auth and azure.core that mean missing credentials. They do not inherit from
`PermissionError`."""
_NOTHING = "nothing is there"
"""Cause of an error if nothing exists at a local path. The error becomes a `NoGroupError`."""
_USUAL_ADVICE = "check the path, and that the packages which this kind of store or file needs are installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a command opens: a group or an array in a store."""

    store: str = field(repr=False)
    """Path or URL. It may contain secrets."""
    group: str = ""
    """Path of the group in the store, without a slash at either end."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the fsspec client of a remote store. They may contain secrets."""

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of xarray and zarr-python that pass the storage options; empty if there are none."""
        return {"storage_options": dict(self.storage_options)} if self.storage_options else {}

    @property
    def name(self) -> str:
        """Name of the group or array, or of the store: the last part of the path."""
        return f"{self.store}/{self.group}".rstrip("/").rpartition("/")[2]

    @property
    def scheme(self) -> str:
        """Scheme of the first link of an fsspec chain that has one, without wrappers such as ``simplecache::``.

        Empty for a path and for ``file://``.
        """
        before, separator, _ = self.store.partition("://")
        scheme = before.rpartition("::")[2].lower()
        return scheme if separator and scheme != "file" else ""

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine: a folder, or a file such as a zip file."""
        last_link = self.store.rpartition("::")[2]
        return "://" not in last_link or last_link.startswith("file://")

    def open(self, path: str) -> Any:
        """Return the zarr array or group at a path in the store, or None if there is none that can be opened."""
        return node_at(self.store, path, self.keywords)


@contextmanager
def naming_failures(address: Address, tried: str) -> Iterator[None]:
    """Convert any error of a ``with`` block that opens a store into one that says what to do.

    Parameters
    ----------
    address : Address
        What the block opens.
    tried : str
        The call that opens it, for the message.

    Raises
    ------
    NoGroupError
        Nothing exists at a local path.
    StoreReadError
        A store, a file system or a codec raised any other error.
    """
    try:
        yield
    except GpuZarrError:
        raise
    except Exception as err:  # stores, file systems and codecs raise anything
        cause, do = _cause(err, address)
        found = f"{type(err).__name__}: {err}"
        if cause:
            found = f"{cause} ({found})"
        kind = NoGroupError if cause == _NOTHING else StoreReadError
        raise kind(f"cannot open '{address.store}'", tried=tried, found=found, do=do) from err


def _cause(err: BaseException, address: Address) -> tuple[str, str]:
    """Return the cause of an error and what to do. The cause is empty if the error itself names it, or if unknown."""
    errors: list[BaseException] = []
    error: BaseException | None = err
    while error is not None and error not in errors:  # libraries may set causes that form a cycle
        errors.append(error)
        error = error.__cause__ or error.__context__
    if any(isinstance(e, PermissionError) or type(e).__name__ in _NO_CREDENTIALS for e in errors):
        do = f"let this user read it, and enter all folders above it: namei -l '{address.store}' shows who may"
        if address.scheme:
            do = (
                "give credentials that may read it, in the environment or with --storage-options KEY=VALUE, as its "
                "fsspec client calls them; for public data, anon=true on S3 and token=anon on Google Cloud"
            )
        return "", do
    import_errors = [e for e in errors if isinstance(e, ImportError)]
    if import_errors:
        packages = [e.name for e in import_errors if e.name]  # fsspec's own ImportError has no name, its cause has one
        return "", f"pip install {packages[0]}" if packages else _USUAL_ADVICE
    if any(str(e).startswith("Protocol not known") for e in errors):
        return "", "correct what stands before ://, which is usually s3, gs, az, https or file"
    if isinstance(err, TypeError) and "storage_options" in str(err) and not address.scheme:
        return "", "leave --storage-options out: a local path has none"
    try:
        return _examine_place(address)
    except Exception:  # noqa: BLE001  # the caller reports the earlier error
        return "", _USUAL_ADVICE


def _examine_place(address: Address) -> tuple[str, str]:
    """Return what is at an address where a dataset was expected, and what to do. The former is empty if unknown."""
    node = address.open(address.group)
    if isinstance(node, zarr.Array) and not address.group:
        parent, _, name = address.store.rstrip("/").rpartition("/")
        parent_address = replace(address, store=parent or ".")
        explanation = _explain_no_dataset(parent_address.open(""))
        if explanation is not None:
            return explanation
        return "an array, not a group", f"give the group that holds {name!r}: {parent_address.store}"
    explanation = _explain_no_dataset(node)
    if explanation is not None:
        return explanation
    path = Path(address.store)
    if node is None and not address.group and not address.scheme and path.is_dir():
        return explain_folder(path) or ("", _USUAL_ADVICE)
    # Nothing more is known about what a URL names, or about a path that exists.
    if "::" in address.store or "://" in address.store or path.exists():
        return "", _USUAL_ADVICE
    return _NOTHING, _advise_on_path(path.absolute())


def _advise_on_path(path: Path) -> str:
    """Return what to do about a local path that does not exist."""
    if not path.parent.is_dir():
        return f"check the path: there is no folder '{path.parent}'"
    names = sorted(entry.name for entry in path.parent.iterdir())
    return f"check the path{similar_name_hint(path.name, names)}"


def _explain_no_dataset(node: Any) -> tuple[str, str] | None:
    """Return why a group is not a dataset and what to do. None if it may be one, or is no group."""
    if not isinstance(node, zarr.Group):
        return None
    why = why_no_dataset(dict(sorted(node.arrays())))
    if not why:
        return None
    return why, f"gpuzarr info and gpuzarr bench take single arrays; {IMAGE_RECIPES_HINT}"


def why_no_dataset(arrays: Mapping[str, zarr.Array[Any]]) -> str:
    """Return why the arrays of a group are not a dataset. Empty if they may be one, as far as metadata tell."""
    lengths: dict[str, tuple[str, int]] = {}
    for name, array in arrays.items():
        dims = dims_of(array)
        if dims is None:
            return f"The dimensions of {name!r} have no names, which a dataset needs"
        for dim, length in zip(dims, array.shape, strict=False):  # damaged metadata may name more or fewer dimensions
            other_name, other_length = lengths.setdefault(dim, (name, length))
            if length != other_length:
                return (
                    f"{dim!r} is {other_length} long in {other_name!r} and {length} in {name!r}: "
                    "these arrays are no dataset"
                )
    return ""


def dims_of(array: zarr.Array[Any]) -> list[str] | None:
    """Return the names of an array's dimensions where xarray looks for them, or None if one of them has no name."""
    dims = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(dims, list | tuple) or None in dims:
        return None
    return list(dims)
