"""The error for chunks that cannot be decoded because the array was stored anew since it was opened."""

from __future__ import annotations

import json
from typing import Any

from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.stored.metadata import to_json

_NOT_OF_CHUNKS = {"shape", "fill_value", "dimension_names"}
"""An array that has only become longer has the chunks that it had."""


def changes(opened: str, document: bytes) -> str:
    """Say what has changed since metadata were `opened`, if it is anything that chunks depend on; else return nothing.

    `opened` is as `stored.metadata.to_json` writes them, `document` as it is stored now. Raises exceptions of any kind
    if that is no document of an array, or of one that zarr-python does not know.
    """
    then: dict[str, Any] = json.loads(opened)
    metadata = (ArrayV3Metadata if then["zarr_format"] == 3 else ArrayV2Metadata).from_dict(json.loads(document))
    now: dict[str, Any] = json.loads(to_json(metadata.to_dict()))
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    if set(changed) <= _NOT_OF_CHUNKS:
        return ""
    return "; ".join(f"{name} was {json.dumps(then.get(name))} and is {json.dumps(now.get(name))}" for name in changed)


def changed_metadata(source: ObjectSource, path: str, opened: str) -> MetadataError | None:
    """Return the error of an array whose metadata are others now; None if they are not, or if that cannot be told.

    Asks the store, once: for reads that have failed. `path` is that of the array in the store, `opened` the metadata
    that it was opened with, as in `ArraySpec.metadata`.
    """
    try:
        name = "zarr.json" if json.loads(opened)["zarr_format"] == 3 else ".zarray"
        document = source.start_whole(f"{path.strip('/')}/{name}".lstrip("/"))()
        differences = "" if document is None else changes(opened, bytes(document.data))
    except Exception:  # noqa: BLE001  # of any kind; the failure of the read is the one to tell
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
