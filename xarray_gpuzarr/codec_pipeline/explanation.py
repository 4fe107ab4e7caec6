"""Say of a zarr array who reads and who writes it, where it is decoded, and why not by this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype

from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline, is_known_to_zarr
from xarray_gpuzarr.codec_pipeline.reading import device_of, missing_for, planned_array
from xarray_gpuzarr.codec_pipeline.writing import encoder_for
from xarray_gpuzarr.decoders import Route, decoder_for
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import Unplanned
from xarray_gpuzarr.stored.metadata import require_array


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayExplanation:
    """What is known about one array before anything of it is read."""

    path: str
    """Path of the array inside its store, with a leading slash."""
    ours: bool
    """Whether reads go through this package."""
    where: str
    """Where chunks are decoded: ``"host"``, ``"cuda"``, ``"host, by zarr-python"``, ``"zarr-python"`` ..."""
    why: str
    """The reason; empty for the ordinary way of this engine."""
    writes: str
    """Why zarr-python writes the array; empty where this package does."""

    def __str__(self) -> str:
        written = f"; written by zarr-python ({self.writes})" if self.ours and self.writes else ""
        return visible(f"{self.path}: {self.where}" + (f" ({self.why})" if self.why else "") + written)


def explain(array: zarr.Array[Any]) -> ArrayExplanation:
    """Say whether this package decodes a zarr array when it is indexed, where, and why not; and whether it writes it.

    Parameters
    ----------
    array : zarr.Array
        The pipeline that it was opened with counts, and the buffers that ``zarr.config`` names now.

    Raises
    ------
    ArrayTypeError
        `array` is no zarr array.

    Examples
    --------
    >>> import zarr
    >>> from xarray_gpuzarr import explain, zarr_pipeline
    >>> array = zarr.create_array({}, shape=(4, 4), chunks=(2, 2), dtype="f4")
    >>> print(explain(array))
    /: zarr-python (opened without zarr_pipeline(): call it, then open the array again)
    >>> with zarr_pipeline():
    ...     array = zarr.create_array({}, shape=(4, 4), chunks=(2, 2), dtype="f4")
    >>> print(explain(array))
    /: host
    """
    require_array(array, "explain")
    path, why = f"/{array.path}", _by_zarr(array)
    if why is not None:
        return _of_zarr(path, why)
    prototype = default_buffer_prototype()
    device = device_of(prototype.buffer, prototype.nd_buffer)
    stored = planned_array(array.metadata, array.store, array.path)
    route = _route(stored, device, prototype.nd_buffer.__qualname__)
    if isinstance(route, str):
        return _of_zarr(path, route)
    writes = _why_not_written(array, stored, device)
    return ArrayExplanation(path=path, ours=True, where=route.where, why=route.why, writes=writes)


def _of_zarr(path: str, why: str) -> ArrayExplanation:
    return ArrayExplanation(path=path, ours=False, where="zarr-python", why=why, writes=why)


def _why_not_written(array: zarr.Array[Any], stored: StoredArray | Unplanned, device: str | None) -> str:
    """Say why this package leaves writing to zarr-python; nothing if it does not."""
    if isinstance(stored, Unplanned) or isinstance(stored.spec, Unplanned):
        return "it is read by zarr-python"
    if device != "host":
        return "arrays on a GPU are written by zarr-python"
    encoder = encoder_for(array.metadata, stored.spec)
    return encoder if isinstance(encoder, str) else ""


def _by_zarr(array: zarr.Array[Any]) -> str | None:
    """Say why zarr-python does not ask this package; None if it does."""
    if isinstance(array.async_array.codec_pipeline, CodecPipeline):
        return None
    if not is_known_to_zarr():
        return f"zarr-python {zarr.__version__} is older than 3.2"
    return "opened without zarr_pipeline(): call it, then open the array again"


def _route(stored: StoredArray | Unplanned, device: str | None, buffer: str) -> Route | str:
    """Say where this package decodes an array into some buffer, or why it leaves it to zarr-python."""
    if isinstance(stored, Unplanned):
        return stored.reason
    if device is None:
        return f"results are to be {buffer}, which is neither NumPy nor CuPy"
    missing = missing_for(device)
    return "missing: " + ", ".join(missing) if missing else stored.route(decoder_for(device))
