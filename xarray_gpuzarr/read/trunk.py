"""The trunk: selection -> plans -> bytes -> one array, by one decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.decoders import Decoder, by_usable, decoder_for, resolve_storage
from xarray_gpuzarr.errors import CorruptChunkError, DeviceMemoryError, HostMemoryError, ShardIndexError
from xarray_gpuzarr.fetch import ObjectChangedError
from xarray_gpuzarr.fetch.counted import CountedPlans
from xarray_gpuzarr.fetch.mirrors import Attempts
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.read_plan import PointTarget, Target, box_target
from xarray_gpuzarr.plan.selection import OuterSelection, outer_selection
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.progress_bar import watch
from xarray_gpuzarr.read.by_zarr import read_by_zarr
from xarray_gpuzarr.read.changed import changed_metadata
from xarray_gpuzarr.read.plans import draw_plans
from xarray_gpuzarr.read.stored_array import StoredArray, stored_array
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import require_array

_MOST_ELEMENTS = 2**56
"""Of a result: NumPy counts bytes in int64."""

_Selected = OuterSelection | Target | np.ndarray[Any, Any]
"""Something of the shape of what was asked for."""


def read(stored: StoredArray, selection: Any, decoder: Decoder, out: Any = None) -> Any:
    """Read an outer (orthogonal) selection.

    Parameters
    ----------
    stored : StoredArray
    selection : int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them
    decoder : Decoder
    out : array or None
        Where the decoder may put the result; see `Decoder.decode`.

    Returns
    -------
    array of dtype `stored.cast.dtype` on the decoder's device
        `out` itself, a view of it or another array.

    Raises
    ------
    SelectionError, MetadataError, ShardIndexError, CorruptChunkError, StoreReadError, HostMemoryError
    """
    spec, outer = stored.spec, outer_selection(selection, stored.shape)
    if isinstance(spec, Unplanned):
        found = read_by_zarr(stored, lambda a: a.oindex[outer.wanted] if a.ndim else a[()], decoder)
        return outer.restore(found)

    def planned() -> Any:
        return outer.restore(_read_target(stored, spec, box_target(outer, spec.grid), decoder, out))

    return _guarded(stored, spec, outer, planned)


def read_target(stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder, out: Any = None) -> Any:
    """Read what has been cut at the borders of chunks already.

    Parameters
    ----------
    stored : StoredArray
    spec : ArraySpec
        Its.
    target : BoxTarget, PointTarget or StackTarget
    decoder : Decoder
    out : array or None
        Where the decoder may put the result; see `Decoder.decode`.

    Returns
    -------
    array of shape `target.shape` and dtype `stored.cast.dtype` on the decoder's device

    Raises
    ------
    MetadataError, ShardIndexError, CorruptChunkError, StoreReadError, HostMemoryError
    """
    return _guarded(stored, spec, target, lambda: _read_target(stored, spec, target, decoder, out))


def read_points(stored: StoredArray, points: tuple[Any, ...], decoder: Decoder) -> Any:
    """Read single elements: one integer array per axis, broadcast against each other.

    Returns
    -------
    array of the broadcast shape and dtype `stored.cast.dtype` on the decoder's device

    Raises
    ------
    SelectionError, MetadataError, ShardIndexError, CorruptChunkError, StoreReadError, HostMemoryError
    """
    arrays = np.broadcast_arrays(*points)
    if isinstance(stored.spec, Unplanned):
        found = read_by_zarr(stored, lambda a: a.vindex[tuple(each.reshape(-1) for each in arrays)], decoder)
        return found.reshape(arrays[0].shape)
    spec = stored.spec

    def planned() -> Any:
        target = PointTarget(groups=group_points([each.reshape(-1) for each in arrays], spec.grid))
        return _read_target(stored, spec, target, decoder).reshape(arrays[0].shape)

    return _guarded(stored, spec, arrays[0], planned)


def _guarded(stored: StoredArray, spec: ArraySpec, selected: _Selected, planned: Callable[[], Any]) -> Any:
    """Return what a planned read does; say what is wrong with the array, or with so large a selection of it."""
    try:
        return counters.during("decode", planned)
    except (CorruptChunkError, ShardIndexError) as err:
        assert stored.source is not None
        changed = changed_metadata(stored.source, spec.path, spec.metadata)
        if changed is None:
            raise
        raise changed from err
    except DeviceMemoryError:
        raise
    except MemoryError as err:
        raise HostMemoryError(
            f"not enough host memory to read array '{spec.path}'",
            tried=f"a selection of shape {selected.shape}, in chunks of {spec.chunk_nbytes} bytes",
            found=str(err) or "no memory is left",
            do="select less at once, or open with chunks={}; if a chunk is that large, check the array's metadata",
        ) from err


def _read_target(stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder, out: Any = None) -> Any:
    # NumPy refuses shapes beyond what it counts, even where an axis has no elements.
    if math.prod([n or 1 for n in target.shape]) >= _MOST_ELEMENTS:
        raise MemoryError(f"a result of shape {target.shape}")
    assert stored.source is not None
    decode = partial(decoder.decode, out=out)
    return decoder.with_memory(lambda: _read_versions(stored, spec, target, decode))


def _read_versions(stored: StoredArray, spec: ArraySpec, target: Target, decode: Callable[..., Any]) -> Any:
    """Read until all that is read is of one version of its shard."""
    assert stored.source is not None
    attempts = Attempts(stored.source)
    while True:
        try:
            return _read_snapshot(stored, spec, target, decode, attempts)
        except ObjectChangedError as err:  # since its index was read, by this read or by an earlier one
            if not attempts.again(err):
                raise


def _read_snapshot(
    stored: StoredArray, spec: ArraySpec, target: Target, decode: Callable[..., Any], attempts: Attempts
) -> Any:
    assert stored.source is not None
    nbytes = math.prod(target.shape) * np.dtype(stored.cast.dtype).itemsize
    with Snapshot(stored.source, spec, care=attempts.care, use_cache=attempts.use_cache) as snapshot:
        plans = CountedPlans(draw_plans(spec, target, snapshot))
        with watch(iter(plans), attrgetter("n_chunks"), n_chunks=target.n_chunks, nbytes=nbytes) as watched:
            result = decode(watched, snapshot, spec=spec, target=target, cast=stored.cast)
        snapshot.check_all_there()
    plans.done()
    return result


def read_array(array: zarr.Array[Any], selection: Any = None, *, device: str = "auto", storage: str = "auto") -> Any:
    """Read a zarr array, or a selection of it, with the engine that ``engine="gpuzarr"`` uses.

    Parameters
    ----------
    array : zarr.Array
        Format 2 or 3, sharded or not, in any store.
    selection : int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them, optional
        Applied axis by axis (orthogonally). Everything if left out.
    device : "auto", "cuda", "cuda:1" (any number) or "host"
        Where to decode and where the result lives. "cuda" is the calling thread's current GPU.
    storage : "auto", "posix" or "gds"
        How local files reach a GPU; see `xarray_gpuzarr.backend.GpuZarrBackendEntrypoint.open_dataset`.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Stored values, the fill value where chunks are missing. C order if the selection goes forwards on every axis.
        A CuPy array has the machine's byte order; times, text, structures and objects, which CuPy lacks, come as
        zarr-python gives them, as NumPy arrays.

    Raises
    ------
    GpuZarrError
        `ArrayTypeError`, `OptionError`, `SelectionError`, `MetadataError`, `DeviceUnavailableError`, `StoreReadError`,
        `ShardIndexError`, `CorruptChunkError`, `HostMemoryError`.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> array = zarr.create_array({}, data=np.arange(12).reshape(3, 4), chunks=(1, 2), shards=(2, 4))
    >>> read_array(array, (slice(None), [0, 3]), device="host")
    array([[ 0,  3],
           [ 4,  7],
           [ 8, 11]])
    """
    require_array(array)
    way = resolve_storage(storage, device)
    stored, wanted = stored_array(array, storage=way), ... if selection is None else selection
    return by_usable(decoder_for(device), lambda decoder: read(stored, wanted, decoder), or_host=device == "auto")
