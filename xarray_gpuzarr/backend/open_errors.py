"""Errors for groups that cannot be opened: no group there, damaged metadata, an unknown codec, arrays that do not fit.

After xarray or zarr-python has raised an error, the store is searched for the cause. If it is found, an error that
names it replaces the first one. `explaining_failures` and `explaining_misfits` do this for the code inside a ``with``
block.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import zarr
from xarray.backends import ZarrStore
from zarr.errors import ContainsArrayError, UnknownCodecError
from zarr.storage import ZipStore

from xarray_gpuzarr.backend.damaged_metadata import find_damage
from xarray_gpuzarr.errors import MetadataError, NoGroupError, UnsupportedCodecError, similar_name_hint
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop

_MOST_NAMED = 12
"""Largest number of names that a message lists."""
_GROUP_FILES = ("zarr.json", ".zgroup")
"""Metadata documents, one of which every group has."""
IMAGE_RECIPES_HINT = 'recipes for images are in the documentation, "Stores", below "OME-Zarr and single arrays"'
"""Advice, in messages, for arrays that are not opened as a dataset."""
_PIP_NAMES = {
    "imagecodecs_": "imagecodecs",
    "zfpy": "'numcodecs[zfpy]'",
    "pcodec": "'numcodecs[pcodec]'",
    "scale_offset": "'zarr>=3.2'",
    "cast_value": "'zarr>=3.2' cast-value-rs",
}
"""Part of the name of a codec -> arguments of ``pip install``."""

type Cause = tuple[str, str]
"""What is there instead of a group, and what the user can do about it."""


@contextmanager
def explaining_failures(
    location: Any, *, group: Any = None, storage_options: Any = None, zarr_format: Any = None, **_: Any
) -> Iterator[None]:
    """Replace errors of xarray and zarr-python inside a ``with`` block by errors that name the cause, if it is found.

    Parameters
    ----------
    location : path, URL or zarr store
        The store that is opened inside the block.
    group, storage_options, zarr_format
        Keywords of xarray's `ZarrStore.open_group`. Its other keywords have no effect here.

    Raises
    ------
    NoGroupError
        There is no such group, or no store.
    MetadataError
        A metadata document is damaged.
    UnsupportedCodecError
        A codec is not installed.
    """
    path = str(group or "").strip("/")
    try:
        yield
    except UnknownCodecError as err:
        raise _unknown_codec_error(location, err) from err
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as err:  # raised for damaged metadata
        try:
            damage = run_on_loop(str(location), partial(find_damage, location, path, storage_options))
        except Exception:  # noqa: BLE001  # the search has failed, so the first error is raised
            damage = None
        if damage is None:
            raise
        raise _damage_error(location, *damage) from err
    # What xarray and zarr-python raise where no group is found. An array at its path causes an AttributeError.
    except (AttributeError, ContainsArrayError, FileNotFoundError, KeyError) as err:
        try:
            cause = _why_absent(location, path, {"storage_options": storage_options, "zarr_format": zarr_format})
        except Exception:  # noqa: BLE001  # the store may list nothing, or be damaged
            cause = None
        if cause is None:
            raise
        found, advice = cause
        group_of = f"group '{path}' of " if path else ""
        tried = f"opening group={group!r}" if path else "opening its first group"
        raise NoGroupError(f"cannot open {group_of}'{location}'", tried=tried, found=found, do=advice) from err


def _unknown_codec_error(location: Any, err: UnknownCodecError) -> UnsupportedCodecError:
    """Return the error for a codec that zarr-python does not know, with the package to install if that is known."""
    package = next((package for part, package in _PIP_NAMES.items() if part in str(err)), None)
    install = "install the package that brings the codec" if package is None else f"pip install {package}"
    return UnsupportedCodecError(
        f"an array of {location} is stored with a codec that is not installed",
        tried="the codecs of zarr-python and of the packages that register codecs with it",
        found=str(err),
        do=f"{install}, or leave the array's group out",
    )


def _damage_error(location: Any, key: str, fault: str) -> MetadataError:
    """Return the error for a damaged metadata document, from its key and what is wrong with it."""
    alternative = ", or open with consolidated=False" if key.endswith(".zmetadata") else ""
    return MetadataError(
        f"cannot open '{location}': its document '{key}' is damaged",
        tried=f"reading '{key}' as a JSON object",
        found=fault,
        do=f"restore this document from a copy, or write its array or group again{alternative}",
    )


@contextmanager
def explaining_misfits(group: ZarrStore) -> Iterator[None]:
    """Replace errors of xarray inside a ``with`` block by a `NoGroupError` if the arrays of a group form no dataset.

    They form none if an array has no names of dimensions, or if the lengths of a dimension differ between arrays.
    """
    try:
        yield
    except (KeyError, ValueError) as err:
        # xarray has no error classes for these cases, so they are recognised by the text of the error.
        has_dimension_names = "_ARRAY_DIMENSIONS" not in str(err)
        if has_dimension_names and "conflicting sizes" not in str(err):
            raise
        misfits = _misfits(group) if has_dimension_names else []
        other_ways = ""
        if misfits:
            other_ways = (
                "if an append has been interrupted, cut the longer arrays back with zarr.open_array(path, "
                "mode='r+').resize(shape) and call zarr.consolidate_metadata; or leave out those that do not fit: "
                f"drop_variables={misfits}; or "
            )
        raise NoGroupError(
            f"the arrays in '{group.zarr_group.store_path}' are no dataset",
            tried=f"to open as one dataset: {listed(sorted(group.array_keys()))}",
            found=str(err.args[0]),
            do=f"{other_ways}read one alone: xarray_gpuzarr.read_array(zarr.open_array(...)); {IMAGE_RECIPES_HINT}",
        ) from err


def _misfits(group: ZarrStore) -> list[str]:
    """Return the names of variables with a dimension that is longer or shorter than in the variables before them.

    The variables are compared in alphabetical order. Those that do not fit are left out of the comparison.
    """
    misfits: list[str] = []
    lengths: dict[Hashable, int] = {}
    for name, variable in sorted(group.get_variables().items()):
        if any(lengths.get(dim, length) != length for dim, length in variable.sizes.items()):
            misfits.append(name)
        else:
            lengths |= variable.sizes
    return misfits


def _why_absent(location: Any, path: str, options: dict[str, Any]) -> Cause | None:
    """Return why there is no group at a path in a store, and what to do. None if that is unknown.

    `options` are the keywords `storage_options` and `zarr_format` of `zarr.open`.
    """
    node = node_at(location, path, options)
    if isinstance(node, zarr.Array):
        advice = "read it alone: xarray_gpuzarr.read_array(zarr.open_array(...)); or open the group that holds it; "
        found = f"an array, not a group, at '{path}'" if path else "an array, not a group"
        return found, advice + IMAGE_RECIPES_HINT
    if node is None and options["zarr_format"]:
        node_of_any_format = node_at(location, path, options | {"zarr_format": None})
        if isinstance(node_of_any_format, zarr.Group):
            n = node_of_any_format.metadata.zarr_format
            return f"a group of Zarr format {n}", f"leave zarr_format out, or give zarr_format={n}"
    root = node_at(location, "", options) if path else node
    if root is None:
        return _why_no_root(location, path, options, has_group=isinstance(node, zarr.Group))
    if path and node is None and isinstance(root, zarr.Group):
        return _explain_missing_group(root, path)
    return None


def _why_no_root(location: Any, path: str, options: dict[str, Any], *, has_group: bool) -> Cause | None:
    """Return what there is at a location that is no group itself, and what to do. None if that is unknown.

    `has_group` says whether there is a group at `path` below the location nevertheless.
    """
    if has_group:
        return f"a group at '{path}', but none at the location itself", _how_to_open_below(location, path)
    if isinstance(location, ZipStore):
        stores = _groups_in_zip(str(location.path))
        if not stores:
            return None
        advice = f"name a store in it, with consolidated=False: group={listed(stores)}"
        return "no zarr.json or .zgroup at the top of this zip file", advice
    return _explain_address(location, options) if isinstance(location, str) else None


def _how_to_open_below(location: Any, path: str) -> str:
    """Return how to open a group below a location that is no group itself."""
    if not isinstance(location, str):
        return "open it with consolidated=False"
    if location.startswith("zip::"):
        return f"open zip://{path}::{location.removeprefix('zip::')}"
    return f"open {location.rstrip('/')}/{path}"


def _explain_address(address: str, options: dict[str, Any]) -> Cause | None:
    """Return what is at a path or URL that is no store, and what to do. None if that is unknown."""
    path = Path(address)
    if path.is_dir():
        return explain_folder(path)
    file = address.removeprefix("zip::")
    stores = _groups_in_zip(file) if is_zipfile(file) else []
    if stores:
        return "a zip file of folders", f"name a store in it: {listed([f'zip://{name}::{file}' for name in stores])}"
    if is_zipfile(path):  # it is a store itself, or has no groups in its top folders
        advice = f"open zarr.storage.ZipStore('{address}') in place of its path; on the command line, zip::{address}"
        return "a zip file", advice
    if path.is_file():
        advice = (
            "xarray.open_dataset(path) without engine= reads other formats; gpuzarr demo --source FILE rewrites one"
        )
        return "a file that is no Zarr store", advice
    parent = address.rstrip("/").rpartition("/")[0]
    group = node_at(parent, "", options) if parent else None
    names = sorted(group) if isinstance(group, zarr.Group) else []
    if not names:
        return None
    return "nothing is there", f"name what is in the group '{parent}': {listed(names)}"


def explain_folder(folder: Path) -> Cause | None:
    """Return what is in a folder that is no store, and what to do. None if it is a group."""
    if _is_group(folder):
        return None
    stores = sorted(child.name for child in folder.iterdir() if _is_group(child))
    advice = f"name a store in it: {listed(stores)}" if stores else "name the folder that holds one of them"
    return "no zarr.json or .zgroup in this folder", advice


def _is_group(folder: Path) -> bool:
    """Return whether a folder has the metadata document of a group."""
    return any((folder / name).exists() for name in _GROUP_FILES)


def _groups_in_zip(file: str) -> list[str]:
    """Return the names of groups in the top folder of a zip file. Empty if the file is a store itself."""
    with ZipFile(file) as zip_file:
        names = [name.split("/") for name in zip_file.namelist()]
    if any(len(parts) == 1 and parts[0] in _GROUP_FILES for parts in names):
        return []
    return sorted({parts[0] for parts in names if len(parts) == 2 and parts[1] in _GROUP_FILES})


def _explain_missing_group(root: zarr.Group, path: str) -> Cause | None:
    """Return what is in the last group of `path` that exists, and what to do.

    `path` starts from `root`, and is not empty.
    """
    parent = root
    parent_path = ""  # ends with a slash unless it is empty
    for name in path.split("/"):
        group_names = sorted(parent.group_keys())
        if name not in group_names:
            break
        group = parent[name]
        if not isinstance(group, zarr.Group):  # only if it was replaced meanwhile
            return None
        parent = group
        parent_path = f"{parent_path}{name}/"
    in_parent = f"in '{parent_path[:-1]}'" if parent_path else "in this store"
    arrays = sorted(parent.array_keys())
    and_arrays = f"; the arrays there are {listed(arrays)}" if arrays else ""
    if not group_names:
        advice = f"open '{parent_path[:-1]}'" if parent_path else "leave the group out"
        return f"there are no groups {in_parent}{and_arrays}", advice
    paths = [parent_path + group_name for group_name in group_names]
    advice = f"name one of the groups {in_parent}{similar_name_hint(parent_path + name, paths)}: {listed(paths)}"
    return f"no group '{path}'{and_arrays}", advice


def node_at(location: Any, path: str, options: dict[str, Any]) -> zarr.Array[Any] | zarr.Group | None:
    """Return the array or group at a path in a store, or None if it cannot be opened.

    `options` are keywords of `zarr.open`.
    """
    try:
        return zarr.open(location, path=path, mode="r", **options)
    except Exception:  # noqa: BLE001  # the caller is about to raise the error of opening the group
        return None


def listed(names: list[str]) -> str:
    """Return a text with the first names and the number of the others."""
    n_others = len(names) - _MOST_NAMED
    others = f" and {n_others} more" if n_others > 0 else ""
    return ", ".join(names[:_MOST_NAMED]) + others
