"""Reads of planned arrays, from a selection to an array.

A selection becomes a target. `ChunkTables` requests the shard indexes and turns them into plans, which the decoder
carries out. Both read through a `Snapshot`, which holds to one version of each shard. `Attempts` repeats a read if an
object was replaced meanwhile, or memory was short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.decoders.choice import decoder_for, resolve_storage
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import GpuZarrError, HostMemoryError
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.fetch.version_conflicts import care_by_store
from xarray_gpuzarr.plan.crops import StackAxis, sample_length
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.plan.targets import PointTarget, Target, box_target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.read_progress import ReadProgress, shown_bars
from xarray_gpuzarr.read.attempts import Attempts
from xarray_gpuzarr.read.by_zarr import read_by_zarr
from xarray_gpuzarr.read.stored_array import StoredArray, stored_array
from xarray_gpuzarr.read.tables import ChunkTables
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import require_array

_MOST_ELEMENTS = 2**56
"""A result has fewer elements, so that NumPy can count its bytes in int64, whatever the dtype."""


def read(stored: StoredArray, selection: Any, decoder: Decoder, out: Any = None, *, or_host: bool = False) -> Any:
    """Read an outer (orthogonal) selection.

    Parameters
    ----------
    stored : StoredArray
        The array.
    selection : int, slice, Ellipsis, 1-D array of int or bool, or tuple of these
        See `outer_selection`.
    decoder : Decoder
        Determines the device of the result.
    out : array of the decoder's library, optional
        Receives the result if it fits; see `Decoder.decode`.
    or_host : bool
        Whether the host decodes if the device of `decoder` is unusable.

    Returns
    -------
    array of the decoder's library
        `out`, a view of it, or another array, on the decoder's device. Dtype `stored.cast.dtype`, on a GPU in the
        machine's byte order.

    Raises
    ------
    SelectionError
        If the selection does not fit the array.
    MetadataError, ShardIndexError, CorruptChunkError, UnsupportedCodecError, StoreReadError, HostMemoryError
        Each names the array, and the store key where there is one.
    DeviceUnavailableError, DeviceMemoryError
        If the device cannot be used, or lacks memory.
    """
    spec = stored.spec
    outer = outer_selection(selection, stored.shape)
    if isinstance(spec, Unplanned):
        return outer.restore(read_by_zarr(stored, outer.selectors, decoder, or_host=or_host))
    try:
        target = box_target(outer, spec.grid)
        return outer.restore(_read_target(stored, spec, target, decoder, out, or_host=or_host))
    except MemoryError as err:
        if isinstance(err, GpuZarrError):  # an error of this package, such as `DeviceMemoryError`, is worded already
            raise
        raise _no_host_memory(spec, outer.shape, err) from err


def read_points(stored: StoredArray, points: tuple[Any, ...], decoder: Decoder, *, or_host: bool = False) -> Any:
    """Read single elements.

    `points` has an integer array for each axis, of which there is at least one. They are broadcast against each other,
    and the result has the broadcast shape. Otherwise, parameters, result and errors are those of `read`.
    """
    spec = stored.spec
    arrays = np.broadcast_arrays(*points)
    shape = arrays[0].shape
    if isinstance(spec, Unplanned):
        return read_by_zarr(stored, tuple(arrays), decoder, pointwise=True, or_host=or_host).reshape(shape)
    try:
        target = PointTarget(groups=group_points([coordinates.reshape(-1) for coordinates in arrays], spec.grid))
        return _read_target(stored, spec, target, decoder, or_host=or_host).reshape(shape)
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, shape, err) from err


def read_stacked(
    stored: StoredArray, spec: ArraySpec, axes: Sequence[StackAxis], n_samples: int, decoder: Decoder, out: Any = None
) -> Any:
    """Read crops of one array, and stack them along a new first axis.

    `axes` and `n_samples` are those of `stack_target`. Otherwise, parameters, result and errors are those of `read`.
    """
    shape = (n_samples, *map(sample_length, axes))
    try:
        if decoder.device == "host":  # check before `stack_target`, which takes time and memory to list the boxes
            _require_room(shape, stored.cast.dtype)
        return _read_target(stored, spec, stack_target(axes, n_samples, spec.grid), decoder, out)
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, shape, err) from err


def read_target(stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder, out: Any = None) -> Any:
    """Read the elements of a target. The result has shape `target.shape`.

    `spec` describes the array, and may be another one than `stored.spec` (of a resized array, for example). Otherwise,
    parameters, result and errors are those of `read`.
    """
    try:
        return _read_target(stored, spec, target, decoder, out)
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, target.shape, err) from err


def _read_target(
    stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder, out: Any = None, *, or_host: bool = False
) -> Any:
    """Read a target, in one call if the decoder can. Otherwise, repeat failed attempts as `Attempts` decides."""
    source = stored.source
    assert source is not None
    account = counters.local.account
    previous_stage = account.stage
    try:
        account.switch("decode")
        # A read in one call reports no progress, and takes only `Care.USUAL`.
        if not shown_bars and source.identity not in care_by_store:
            array = decoder.read_without_plan(source, spec, target, stored.cast, out)
            if array is not None:
                return array
        attempts = Attempts(source, spec, decoder, or_host=or_host)
        while True:
            try:
                if attempts.is_alone:  # not called in the `except` below, where the error keeps device memory alive
                    return attempts.decoder.alone(lambda: _read_once(stored, spec, target, out, attempts))
                return _read_once(stored, spec, target, out, attempts)
            except Exception as err:
                if not attempts.prepare_retry(err):
                    raise
    finally:
        try:
            account.switch(previous_stage)
        finally:  # even if a signal interrupts the line above
            account.stage = previous_stage


def _read_once(stored: StoredArray, spec: ArraySpec, target: Target, out: Any, attempts: Attempts) -> Any:
    """Read and decode a target once, all bytes of each shard from one version of it."""
    assert stored.source is not None
    # NumPy refuses shapes whose elements it cannot count, even if an axis has length 0.
    if math.prod([n or 1 for n in target.shape]) >= _MOST_ELEMENTS:
        raise MemoryError(f"a result of shape {target.shape}")
    snapshot = Snapshot(
        stored.source,
        spec,
        care=attempts.care,
        use_cache=attempts.use_cache,
        cuts_objects=attempts.cuts_objects,
        seen_shards=attempts.seen_shards,
        short_requests=attempts.decoder.device == "host",
    )
    nbytes = math.prod(target.shape) * np.dtype(stored.cast.dtype).itemsize
    shown = shown_bars[:1]  # a copy, since another thread may empty the list
    progress = ReadProgress(shown[0], target.n_chunks, nbytes) if shown else None
    try:
        tables = ChunkTables(spec, target, snapshot, progress)
        tables.request_indexes()  # the decoder waits for their answers where it draws a plan
        result = attempts.decoder.decode(tables, snapshot, spec=spec, target=target, cast=stored.cast, out=out)
        snapshot.check_all_there()
    except BaseException:
        if progress is not None:
            progress.withdraw()
        raise
    finally:
        snapshot.end()
    if progress is not None:
        progress.end()
    decoded_nbytes = tables.chunk_nbytes - snapshot.cached_nbytes
    counters.add(n_reads=1, n_shards=tables.n_shards, decoded_nbytes=decoded_nbytes)
    return result


def _require_room(shape: tuple[int, ...], dtype: str) -> None:
    """Raise `MemoryError` if NumPy cannot allocate a result."""
    if math.prod(shape) >= _MOST_ELEMENTS:
        raise MemoryError(f"a result of shape {shape}")
    np.empty(shape, dtype)  # raises `MemoryError`; the array itself is not used


def _no_host_memory(spec: ArraySpec, shape: tuple[int, ...], err: MemoryError) -> HostMemoryError:
    """Return the error for a selection that is too large for the memory of this machine."""
    return HostMemoryError(
        f"not enough host memory to read array '{spec.path}'",
        tried=f"a selection of shape {shape}, in chunks of {spec.chunk_nbytes} bytes",
        found=str(err) or "no memory is left",
        do="select less at once, or open with chunks={}; if a chunk is that large, check the array's metadata",
    )


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
        `ShardIndexError`, `CorruptChunkError`, `UnsupportedCodecError`, `HostMemoryError`, `DeviceMemoryError`.

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
    stored = stored_array(array, storage=resolve_storage(storage, device))
    key = ... if selection is None else selection
    return read(stored, key, decoder_for(device), or_host=device == "auto")
