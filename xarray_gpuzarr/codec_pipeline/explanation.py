"""`explain`: whether this package reads and writes a zarr array, where the array is decoded, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import zarr
from zarr.core.buffer import BufferPrototype, default_buffer_prototype

from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline, is_zarr_new_enough
from xarray_gpuzarr.codec_pipeline.reading import device_of, missing_for, planned_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import Unplanned
from xarray_gpuzarr.stored.metadata import require_array
from xarray_gpuzarr.write.array_encoder import encoder_for


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArrayExplanation:
    """How an array is read and written; see `explain`. `str` and `repr` say it in one line."""

    path: str
    """Path of the array inside its store, with a leading slash."""
    ours: bool
    """Whether reads go through this package."""
    where: str
    """Where chunks are decoded: ``"host"``, ``"cuda"``, ``"host, by zarr-python"``, ``"zarr-python"`` ..."""
    why: str
    """The reason; empty if the array is decoded in the usual way."""
    why_not_written: str
    """Why zarr-python writes the array; empty if this package writes it."""

    def __str__(self) -> str:
        text = f"{self.path}: {self.where}"
        if self.why:
            text += f" ({self.why})"
        if self.ours and self.why_not_written:
            text += f"; written by zarr-python ({self.why_not_written})"
        elif self.ours:
            text += ", reads and writes"
        return visible(text)

    def __repr__(self) -> str:
        return f"<{self}>"


def explain(array: zarr.Array[Any]) -> ArrayExplanation:
    """Return whether this package decodes a zarr array when it is indexed, where and why, and whether it writes it.

    Parameters
    ----------
    array : zarr.Array
        The array. The answer is for the pipeline with which it was opened, and for the buffers that ``zarr.config``
        names now.

    Returns
    -------
    ArrayExplanation
        The answer, whose text is one line.

    Raises
    ------
    ArrayTypeError
        If `array` is not a zarr array.

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
    /: host, reads and writes
    """
    require_array(array, "explain")
    path = f"/{array.path}"
    prototype = default_buffer_prototype()
    device = device_of(prototype.buffer, prototype.nd_buffer)
    stored: StoredArray | Unplanned
    if isinstance(array.async_array.codec_pipeline, CodecPipeline):
        stored = planned_array(array.metadata, array.store, array.path)
    elif is_zarr_new_enough():
        stored = Unplanned(reason="opened without zarr_pipeline(): call it, then open the array again")
    else:
        stored = Unplanned(reason=f"zarr-python {zarr.__version__} is older than 3.2")
    why = _why_not_ours(stored, device, prototype)
    if why or isinstance(stored, Unplanned):
        return ArrayExplanation(path=path, ours=False, where="zarr-python", why=why, why_not_written=why)
    assert device is not None
    assert not isinstance(stored.spec, Unplanned)  # `planned_array` would have returned the `Unplanned` itself
    route = stored.route(decoder_for(device))
    why_not_written = ""
    if device != "host":
        why_not_written = "arrays on a GPU are written by zarr-python"
    else:
        encoder = encoder_for(array.metadata, stored.spec)
        if isinstance(encoder, str):
            why_not_written = encoder
    return ArrayExplanation(path=path, ours=True, where=route.where, why=route.why, why_not_written=why_not_written)


def _why_not_ours(stored: StoredArray | Unplanned, device: str | None, prototype: BufferPrototype) -> str:
    """Return why zarr-python decodes an array; empty if this package does."""
    if isinstance(stored, Unplanned):
        return stored.reason
    if device is None:
        return f"results are to be {prototype.nd_buffer.__qualname__}, which is neither NumPy nor CuPy"
    missing = missing_for(device)
    return "missing: " + ", ".join(missing) if missing else ""
