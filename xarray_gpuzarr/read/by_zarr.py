"""Reads by zarr-python, on the host, of arrays that cannot be planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from zarr.registry import get_pipeline_class

from xarray_gpuzarr.decoders.choice import decoder_for, read_with_usable
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import CorruptChunkError, StoreReadError
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.strict import ChunkNotFoundError, missing_chunks_error
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read.changed import changed_metadata
from xarray_gpuzarr.read.stored_array import StoredArray
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS
from xarray_gpuzarr.stored.metadata import to_json


def read_by_zarr(
    stored: StoredArray, key: tuple[Any, ...], decoder: Decoder, *, pointwise: bool = False, or_host: bool = False
) -> Any:
    """Read a selection of an array that cannot be planned.

    Parameters
    ----------
    stored : StoredArray
        An array whose `zarr_array` is set.
    key : tuple of slice or array of int
        Selection along each axis. If `pointwise`, arrays of one shape: the coordinates of single elements.
    decoder : Decoder
        Casts the result, and copies it to its device.
    pointwise : bool
        Whether to read single elements.
    or_host : bool
        Whether the result may stay on the host if the device of `decoder` is unusable.

    Returns
    -------
    array of the decoder's library
        Flat if `pointwise`. A NumPy array if the dtype is not numeric, since no device holds such arrays.

    Raises
    ------
    StoreReadError, CorruptChunkError, MetadataError
        If zarr-python cannot read the selection.
    """
    assert stored.zarr_array is not None
    array = checked_array(stored.zarr_array)
    # As `counters.stage`, but the previous stage is restored even if a signal interrupts the `finally` block.
    account = counters.local.account
    previous_stage = account.stage
    try:
        account.switch("zarr")
        block = _select(array, key, pointwise=pointwise)
    except ChunkNotFoundError as err:
        store_name = object_source(array.store).name
        raise missing_chunks_error(f"/{array.path}", "chunks", str(err)).within(store_name) from err
    except FrameError as err:
        raise refused_frame(array, err) from err
    except Exception as err:  # stores and codecs may raise anything
        opened = to_json(stored.zarr_array.metadata.to_dict())
        source = object_source(array.store)
        # `changed_metadata` makes a request. It would fail again if the client has given up on the server ("final").
        changed = None if is_final(err) else changed_metadata(source, array.path, opened)
        error = changed or StoreReadError(
            f"zarr-python cannot read array '/{array.path}'",
            tried=f"a selection of it, by zarr-python: {stored.route(decoder_for('host')).why}",
            found=f"{type(err).__name__}: {err}",
            do="check the store and the codecs it names; zarr.open_array(...)[...] shows the same error",
        )
        raise error.within(source.name) from err
    finally:
        try:
            account.switch(previous_stage)
        finally:  # even if a signal interrupts the line above
            account.stage = previous_stage
    counters.add(n_reads=1, decoded_nbytes=block.nbytes)
    if block.dtype.kind not in NUMERIC_KINDS:
        return block
    return read_with_usable(decoder, lambda usable: usable.upload(block, stored.cast), or_host=or_host)


def _select(array: zarr.Array[Any], key: tuple[Any, ...], *, pointwise: bool) -> np.ndarray[Any, Any]:
    """Return a selection that zarr-python reads; `key` and `pointwise` are those of `read_by_zarr`."""
    if pointwise:
        values = array.vindex[tuple([coordinates.reshape(-1) for coordinates in key])]
    else:
        values = array.oindex[key] if array.ndim else array[()]
    if isinstance(values, np.ndarray):
        return values
    # An array without axes gives a scalar, which has lost the byte order of the dtype.
    block = np.empty((), array.dtype)
    block[()] = values
    return block


def checked_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array whose reads raise `FrameError` for frames with a false header, which zarr-python would trust.

    It is `array` itself if no codec needs the check, or if zarr-python's settings name a third-party pipeline, which
    may decode in its own way. It must not take the place of `array` in a
    dataset, since the codecs of its shards cannot be pickled.
    """
    metadata = checked_metadata(array.metadata)
    is_known = get_pipeline_class().__module__.split(".")[0] in ("zarr", "xarray_gpuzarr")
    if metadata is array.metadata or not is_known:
        return array
    config = getattr(array, "config", None)  # zarr-python before 3.2 has no such attribute
    return zarr.Array(zarr.AsyncArray(metadata, array.store_path, config))


def refused_frame(array: zarr.Array[Any], err: FrameError) -> CorruptChunkError:
    """Return the error for a frame that a read of a `checked_array` has refused."""
    return CorruptChunkError(
        f"cannot decode a chunk of array '/{array.path}'",
        tried="a selection of it, by zarr-python",
        found=str(err),
        do="a stored chunk is damaged: select less to find it, and rewrite it or leave it out",
    ).within(object_source(array.store).name)
