"""Arrays that cannot be planned: zarr-python reads the whole selection, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from zarr.registry import get_pipeline_class

from xarray_gpuzarr.decoders.choice import by_usable, decoder_for
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import CorruptChunkError, StoreReadError
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.strict import ChunkNotFoundError, missing_chunks
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
    """Let zarr-python read a selection of an array that cannot be planned; what no device holds stays on the host.

    `key` has a slice or an array of int for each axis; if it is `pointwise`, the arrays, of one shape, are the
    coordinates of single elements, which are returned flat. `decoder` brings the result to its device; with `or_host`,
    the host will do where that is unusable.
    """
    assert stored.zarr_array is not None
    array = checked_array(stored.zarr_array)
    account = counters.local.account
    before = account.stage
    try:
        account.switch("zarr")
        if pointwise:
            values = array.vindex[tuple([each.reshape(-1) for each in key])]
        else:
            values = array.oindex[key] if array.ndim else array[()]
        block: np.ndarray[Any, Any] = values if isinstance(values, np.ndarray) else np.empty((), array.dtype)
        if block is not values:  # for no axes, zarr-python gives scalars, which know too little of their dtype
            block[()] = values
    except ChunkNotFoundError as err:
        raise missing_chunks(f"/{array.path}", "chunks", str(err)).within(object_source(array.store).name) from err
    except FrameError as err:
        raise refused_frame(array, err) from err
    except Exception as err:  # stores and codecs of any kind; whatever they raise is named
        opened, source = to_json(stored.zarr_array.metadata.to_dict()), object_source(array.store)
        # A server that does not answer is not asked for metadata as well.
        changed = None if is_final(err) else changed_metadata(source, array.path, opened)
        said = changed or StoreReadError(
            f"zarr-python cannot read array '/{array.path}'",
            tried=f"a selection of it, by zarr-python: {stored.route(decoder_for('host')).why}",
            found=f"{type(err).__name__}: {err}",
            do="check the store and the codecs it names; zarr.open_array(...)[...] shows the same error",
        )
        raise said.within(source.name) from err
    finally:
        try:
            account.switch(before)
        finally:  # whatever interrupts this
            account.stage = before
    counters.add(n_reads=1, decoded_nbytes=block.nbytes)
    if block.dtype.kind not in NUMERIC_KINDS:
        return block
    return by_usable(decoder, lambda usable: usable.upload(block, stored.cast), or_host=or_host)


def checked_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array whose reads raise `FrameError` for a frame whose header zarr-python would believe wrongly.

    It is the array itself if no codec needs that, or if zarr-python's settings name a pipeline of somebody else, which
    may decode in its own way. It is made for one read: the codecs of its shards cannot be pickled.
    """
    metadata = checked_metadata(array.metadata)
    is_known = get_pipeline_class().__module__.split(".")[0] in ("zarr", "xarray_gpuzarr")
    if metadata is array.metadata or not is_known:
        return array
    config = getattr(array, "config", None)  # arrays of zarr-python before 3.2 do not show it
    return zarr.Array(zarr.AsyncArray(metadata, array.store_path, config))


def refused_frame(array: zarr.Array[Any], err: FrameError) -> CorruptChunkError:
    """Return the error about a frame that was not given to zarr-python."""
    return CorruptChunkError(
        f"cannot decode a chunk of array '/{array.path}'",
        tried="a selection of it, by zarr-python",
        found=str(err),
        do="a stored chunk is damaged: select less to find it, and rewrite it or leave it out",
    ).within(object_source(array.store).name)
