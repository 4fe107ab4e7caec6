"""Errors for arrays whose metadata changed after they were opened, so that chunks cannot be decoded."""

from __future__ import annotations

import json
from typing import Any

from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.stored.metadata import to_json

_HARMLESS_FIELDS = {"shape", "fill_value", "dimension_names"}
"""Fields of metadata on which encoded chunks do not depend."""


def describe_changes(opened: str, document: bytes) -> str:
    """Return a description of changes in an array's metadata.

    Returns an empty string if there are none, or if stored chunks do not depend on them. Raises exceptions of any kind
    if `document` is not the metadata of an array, or zarr-python cannot parse it.

    Parameters
    ----------
    opened : str
        Metadata that the array was opened with, from `stored.metadata.to_json`.
    document : bytes
        Metadata document that is stored now.
    """
    before: dict[str, Any] = json.loads(opened)
    metadata_class = ArrayV3Metadata if before["zarr_format"] == 3 else ArrayV2Metadata
    metadata = metadata_class.from_dict(json.loads(document))
    after: dict[str, Any] = json.loads(to_json(metadata.to_dict()))
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    if set(changed) <= _HARMLESS_FIELDS:
        return ""
    return "; ".join(
        f"{name} was {json.dumps(before.get(name))} and is {json.dumps(after.get(name))}" for name in changed
    )


def changed_metadata(source: ObjectSource, path: str, opened: str) -> MetadataError | None:
    """Return the error for an array whose metadata have changed.

    Returns None if they have not, if stored chunks do not depend on the changes, or if the stored metadata cannot be
    read. This makes one request, and is meant for reads that have failed.

    Parameters
    ----------
    source : ObjectSource
        Where the array is stored.
    path : str
        Path of the array in the store.
    opened : str
        Metadata that the array was opened with, see `ArraySpec.metadata`.
    """
    try:
        name = "zarr.json" if json.loads(opened)["zarr_format"] == 3 else ".zarray"
        document = source.start_whole(f"{path.strip('/')}/{name}".lstrip("/"))()
        differences = "" if document is None else describe_changes(opened, bytes(document.data))
    except Exception:  # noqa: BLE001  # the error of the read is the one to report
        return None
    if not differences:
        return None
    return MetadataError(
        f"the metadata of array '/{path.strip('/')}' are not those that it was opened with",
        tried="to decode its chunks as they were stored then",
        found=differences,
        do="open it again; if that does not help, the consolidated metadata of its group are out of date: "
        "zarr.consolidate_metadata(store)",
    )
