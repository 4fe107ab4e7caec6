"""The differences between an array's metadata now and when it was opened."""

from __future__ import annotations

import json
from typing import Any

from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from xarray_gpuzarr.stored.metadata import to_json

_NOT_OF_CHUNKS = {"shape", "fill_value", "dimension_names"}
"""An array that has only become longer has the chunks that it had."""


def document_name(opened: str) -> str:
    """Return the name of the document of an array that was opened by some metadata."""
    return "zarr.json" if json.loads(opened)["zarr_format"] == 3 else ".zarray"


def changes(opened: str, document: bytes) -> str:
    """Say what has changed, if it is anything that chunks depend on; else return nothing.

    Parameters
    ----------
    opened : str
        As `stored.metadata.to_json` writes them.
    document : bytes
        As it is stored now.

    Raises
    ------
    Exception
        Of any kind: it is no document of an array, or of one that zarr-python does not know.
    """
    then: dict[str, Any] = json.loads(opened)
    metadata = (ArrayV3Metadata if then["zarr_format"] == 3 else ArrayV2Metadata).from_dict(json.loads(document))
    now: dict[str, Any] = json.loads(to_json(metadata.to_dict()))
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    if set(changed) <= _NOT_OF_CHUNKS:
        return ""
    return "; ".join(f"{name} was {json.dumps(then.get(name))} and is {json.dumps(now.get(name))}" for name in changed)
