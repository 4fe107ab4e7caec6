"""Say of a zarr array who decodes it when it is indexed, where, and why not this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import zarr
from zarr.core.buffer import default_buffer_prototype

from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline
from xarray_gpuzarr.codec_pipeline.reading import device_of, missing_for, planned_array
from xarray_gpuzarr.decoders import decoder_for
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.read import StoredArray
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

    def __str__(self) -> str:
        return visible(f"{self.path}: {self.where}" + (f" ({self.why})" if self.why else ""))


def explain(array: zarr.Array[Any]) -> ArrayExplanation:
    """Say whether this package decodes a zarr array when it is indexed, where, and why not.

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
    /: zarr-python (opened with its BatchedCodecPipeline: say zarr_pipeline(), and open the array again)
    >>> with zarr_pipeline():
    ...     array = zarr.create_array({}, shape=(4, 4), chunks=(2, 2), dtype="f4")
    >>> print(explain(array))
    /: host
    """
    require_array(array, "explain")
    pipeline, path = array.async_array.codec_pipeline, f"/{array.path}"
    if not isinstance(pipeline, CodecPipeline):
        name = type(pipeline).__name__
        return _by_zarr(path, f"opened with its {name}: say zarr_pipeline(), and open the array again")
    stored = planned_array(array.metadata, array.store, array.path)
    if not isinstance(stored, StoredArray):
        return _by_zarr(path, stored.reason)
    if array.config.read_missing_chunks is False:
        return _by_zarr(path, "array.read_missing_chunks is off")
    prototype = default_buffer_prototype()
    device = device_of(prototype.buffer, prototype.nd_buffer)
    if device is None:
        return _by_zarr(path, f"results are to be {prototype.nd_buffer.__qualname__}, which is neither NumPy nor CuPy")
    missing = missing_for(device)
    if missing:
        return _by_zarr(path, "missing: " + ", ".join(missing))
    route = stored.route(decoder_for(device))
    return ArrayExplanation(path=path, ours=True, where=route.where, why=route.why)


def _by_zarr(path: str, why: str) -> ArrayExplanation:
    return ArrayExplanation(path=path, ours=False, where="zarr-python", why=why)
