"""The error for chunks that cannot be decoded because the array was stored anew since it was opened."""

from __future__ import annotations

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch import ObjectSource
from xarray_gpuzarr.stored.changed import changes, document_name


def changed_metadata(source: ObjectSource, path: str, opened: str) -> MetadataError | None:
    """Return the error of an array whose metadata are others now; None if they are not, or if that cannot be told.

    Asks the store, once: for reads that have failed.

    Parameters
    ----------
    source : ObjectSource
    path : str
        Of the array in the store.
    opened : str
        Metadata that the array was opened with, as in `ArraySpec.metadata`.
    """
    try:
        document = source.start_whole(f"{path.strip('/')}/{document_name(opened)}".lstrip("/"))()
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
