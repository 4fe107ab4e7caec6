"""Errors for groups that cannot be opened: no group there, damaged metadata, an unknown codec, arrays of other lengths.

After xarray or zarr-python has failed, the store is searched once more for the cause, and the error names it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import zarr
from xarray.backends import ZarrStore
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.errors import ContainsArrayError, UnknownCodecError
from zarr.storage import FsspecStore, LocalStore, StorePath, ZipStore

from xarray_gpuzarr.errors import MetadataError, NoGroupError, UnsupportedCodecError, perhaps
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop

_MOST_NAMED = 12
_GROUP_FILES = ("zarr.json", ".zgroup")
_DOCUMENTS = (*_GROUP_FILES, ".zarray", ".zattrs", ".zmetadata")
_MOST_NODES = 200
"""Groups and arrays that are searched for damaged metadata."""
IMAGE_RECIPES_HINT = 'recipes for images are in the documentation, "Stores", below "OME-Zarr and single arrays"'
_PIP_NAMES = {
    "imagecodecs_": "imagecodecs",
    "zfpy": "'numcodecs[zfpy]'",
    "pcodec": "'numcodecs[pcodec]'",
    "scale_offset": "'zarr>=3.2'",
    "cast_value": "'zarr>=3.2' cast-value-rs",
}
"""Part of the name of a codec -> arguments of ``pip install``."""


@contextmanager
def explaining_failures(
    where: Any, *, group: Any = None, storage_options: Any = None, zarr_format: Any = None, **_: Any
) -> Iterator[None]:
    """Replace errors of xarray and zarr-python inside a ``with`` block by errors that name the cause, if it is found.

    Those are `NoGroupError`, `MetadataError` and `UnsupportedCodecError`. The arguments are those of xarray's
    `ZarrStore.open_group`.
    """
    path = str(group or "").strip("/")
    try:
        yield
    except UnknownCodecError as err:
        package = next((package for part, package in _PIP_NAMES.items() if part in str(err)), None)
        install = "install the package that brings the codec" if package is None else f"pip install {package}"
        raise UnsupportedCodecError(
            f"an array of {where} is stored with a codec that is not installed",
            tried="the codecs of zarr-python and of the packages that register codecs with it",
            found=str(err),
            do=f"{install}, or leave the array's group out",
        ) from err
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as err:
        try:
            damaged = run_on_loop(str(where), partial(_damaged, where, path, storage_options))
        except Exception:  # noqa: BLE001  # the first error is raised instead
            damaged = None
        if damaged is None:
            raise
        key, fault = damaged
        unread = ", or open with consolidated=False" if key.endswith(".zmetadata") else ""
        raise MetadataError(
            f"cannot open '{where}': its document '{key}' is damaged",
            tried=f"reading '{key}' as a JSON object",
            found=fault,
            do=f"restore this document from a copy, or write its array or group again{unread}",
        ) from err
    except (AttributeError, ContainsArrayError, FileNotFoundError, KeyError) as err:
        try:
            cause = _why_absent(where, path, {"storage_options": storage_options, "zarr_format": zarr_format})
        except Exception:  # noqa: BLE001  # of a store that lists nothing, or that is damaged
            cause = None
        if cause is None:
            raise
        what = f"group '{path}' of " if path else ""
        tried = "opening " + (f"group={group!r}" if path else "its first group")
        raise NoGroupError(f"cannot open {what}'{where}'", tried=tried, found=cause[0], do=cause[1]) from err


@contextmanager
def naming_arrays_apart(group: ZarrStore) -> Iterator[None]:
    """Replace errors of xarray inside a ``with`` block by a `NoGroupError` if the arrays of a group form no dataset."""
    try:
        yield
    except (KeyError, ValueError) as err:
        has_names = "_ARRAY_DIMENSIONS" not in str(err)
        if has_names and "conflicting sizes" not in str(err):
            raise
        others: list[str] = []
        lengths: dict[Hashable, int] = {}
        for name, variable in sorted(group.get_variables().items()) if has_names else ():
            if any(lengths.get(dim, n) != n for dim, n in variable.sizes.items()):
                others.append(name)
            else:
                lengths |= variable.sizes
        without = f"leave out those that do not fit: drop_variables={others}; or " if others else ""
        raise NoGroupError(
            f"the arrays in '{group.zarr_group.store_path}' are no dataset",
            tried=f"to open as one dataset: {listed(sorted(group.array_keys()))}",
            found=str(err.args[0]),
            do=f"{without}read one alone: xarray_gpuzarr.read_array(zarr.open_array(...)); {IMAGE_RECIPES_HINT}",
        ) from err


def _why_absent(where: Any, path: str, how: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is at a path instead of a group, and what to do; None if there is another cause."""
    node = node_at(where, path, how)
    if isinstance(node, zarr.Array):
        do = (
            "read it alone: xarray_gpuzarr.read_array(zarr.open_array(...)); or open the group that holds it; "
            + IMAGE_RECIPES_HINT
        )
        return f"an array, not a group, at '{path}'" if path else "an array, not a group", do
    of_any_format = node_at(where, path, how | {"zarr_format": None}) if how["zarr_format"] else None
    if node is None and isinstance(of_any_format, zarr.Group):
        n = of_any_format.metadata.zarr_format
        return f"a group of Zarr format {n}", f"leave zarr_format out, or give zarr_format={n}"
    root = node_at(where, "", how) if path else node
    if isinstance(node, zarr.Group) and root is None:
        do = "open it with consolidated=False"
        if isinstance(where, str):
            do = f"open zip://{path}::{where[5:]}" if where.startswith("zip::") else f"open {where.rstrip('/')}/{path}"
        return f"a group at '{path}' of what is no group itself", do
    if root is None and isinstance(where, ZipStore):
        stores, absent = _in_zip(str(where.path)), "no zarr.json or .zgroup at the top of this zip file"
        return (absent, f"name a store in it, with consolidated=False: group={listed(stores)}") if stores else None
    if root is None and isinstance(where, str):
        return _no_store(where, how)
    return _other_groups(root, path) if path and node is None and isinstance(root, zarr.Group) else None


def _no_store(where: str, how: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is at a path or URL that is no store, and what to do; None if that is unknown."""
    place, above = Path(where), where.rstrip("/").rpartition("/")[0]
    if place.is_dir():
        return explain_folder(place)
    file = where.removeprefix("zip::")
    stores = _in_zip(file) if is_zipfile(file) else []
    if stores:
        return "a zip file of folders", f"name a store in it: {listed([f'zip://{name}::{file}' for name in stores])}"
    if is_zipfile(place):
        return (
            "a zip file",
            f"open zarr.storage.ZipStore('{where}') in place of its path; on the command line, zip::{where}",
        )
    if place.is_file():
        do = "xarray.open_dataset(path) without engine= reads other formats; gpuzarr demo --source FILE rewrites one"
        return "a file that is no Zarr store", do
    group = node_at(above, "", how) if above else None
    names = sorted(group) if isinstance(group, zarr.Group) else []
    return ("nothing is there", f"name what is in the group '{above}': {listed(names)}") if names else None


def explain_folder(folder: Path) -> tuple[str, str] | None:
    """Return what is in a folder that is no store, and what to do; None if it is a group."""
    if _is_group(folder):
        return None
    stores = sorted(child.name for child in folder.iterdir() if _is_group(child))
    do = f"name a store in it: {listed(stores)}" if stores else "name the folder that holds one of them"
    return "no zarr.json or .zgroup in this folder", do


def _is_group(folder: Path) -> bool:
    return any((folder / name).exists() for name in _GROUP_FILES)


def _in_zip(file: str) -> list[str]:
    """Return the stores in folders of a zip file; none if the file is a store itself."""
    with ZipFile(file) as zipped:
        parts = [name.split("/") for name in zipped.namelist()]
    if any(len(part) == 1 and part[0] in _GROUP_FILES for part in parts):
        return []
    return sorted({part[0] for part in parts if len(part) == 2 and part[1] in _GROUP_FILES})


def _other_groups(root: zarr.Group, path: str) -> tuple[str, str] | None:
    """Return what is in the lowest existing group of a path, and what to do."""
    above, before, rest = root, "", path
    while rest:
        name, _, rest = rest.partition("/")
        names = sorted(above.group_keys())
        if name not in names:
            break
        below = above[name]
        if not isinstance(below, zarr.Group):
            return None
        above, before = below, f"{before}{name}/"
    where = f"in '{before[:-1]}'" if before else "in this store"
    arrays = sorted(above.array_keys())
    besides = f"; the arrays there are {listed(arrays)}" if arrays else ""
    if not names:
        do = f"open '{before[:-1]}'" if before else "leave the group out"
        return f"there are no groups {where}{besides}", do
    paths = [before + each for each in names]
    do = f"name one of the groups {where}{perhaps(before + name, paths)}: {listed(paths)}"
    return f"no group '{path}'{besides}", do


def node_at(where: Any, path: str, how: dict[str, Any]) -> zarr.Array[Any] | zarr.Group | None:
    """Return the array or group at a path, or None if it cannot be opened."""
    try:
        return zarr.open(where, path=path, mode="r", **how)
    except Exception:  # noqa: BLE001  # the first error is raised instead
        return None


def listed(names: list[str]) -> str:
    """Join the first names, and count the others."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


async def _damaged(where: Any, group: str, storage_options: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return the key of the first damaged document, from the root downwards, and its fault; None if there is none."""
    at = await _store_path(where, storage_options)
    top = f"{at.path}/{group}".strip("/")
    waiting = deque([at.path, *([top] if group else [])])
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        path = waiting.popleft()
        keys = [f"{path}/{name}".lstrip("/") for name in _DOCUMENTS]
        stored = await asyncio.gather(*(at.store.get(key, default_buffer_prototype()) for key in keys))
        stored_keys = zip(keys, stored, strict=True)
        documents = {key: document.to_bytes() for key, document in stored_keys if document is not None}
        is_array = False
        for key, document in documents.items():
            try:
                value = json.loads(document)
            except ValueError as err:
                return key, f"{len(document)} bytes that are no JSON: {err}"
            if not isinstance(value, dict):
                return key, f"JSON of a {type(value).__name__}"
            is_array = is_array or key.endswith(".zarray") or value.get("node_type") == "array"
        if documents and not is_array and (path != at.path or not group):
            waiting.extend([f"{path}/{name}".lstrip("/") async for name in at.store.list_dir(path)])
    return None


async def _store_path(where: Any, storage_options: dict[str, Any] | None) -> StorePath:
    """Return the store and path of an input of zarr-python."""
    if isinstance(where, StorePath):
        return where
    if isinstance(where, Store):
        return StorePath(where)
    if "://" in (place := os.fspath(where)):
        return StorePath(FsspecStore.from_url(place, storage_options=storage_options, read_only=True))
    return StorePath(await LocalStore.open(place, read_only=True))
