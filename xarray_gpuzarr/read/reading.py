"""Reading: selection -> target -> snapshot -> chunk tables -> decoder -> one array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.decoders.choice import decoder_for, is_usable, resolve_storage
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    DeviceMemoryError,
    DeviceUnavailableError,
    GpuZarrError,
    HostMemoryError,
    OptionError,
    ShardIndexError,
)
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError, PiecesDifferError
from xarray_gpuzarr.fetch.version_conflicts import Care, VersionConflicts, care_by_store, uncut_stores
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.stack import StackAxis, sample_length, stack_target
from xarray_gpuzarr.plan.targets import PointTarget, Target, box_target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.read_progress import ReadProgress, shown_bars
from xarray_gpuzarr.read.by_zarr import read_by_zarr
from xarray_gpuzarr.read.changed import changed_metadata
from xarray_gpuzarr.read.stored_array import StoredArray, stored_array
from xarray_gpuzarr.read.tables import ChunkTables
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import require_array

_MOST_ELEMENTS = 2**56
"""Most elements in a result: NumPy counts bytes in int64."""


def read(stored: StoredArray, selection: Any, decoder: Decoder, out: Any = None, *, or_host: bool = False) -> Any:
    """Read an outer (orthogonal) selection, as `outer_selection` takes it, of dtype `stored.cast.dtype`.

    The result is on the decoder's device: `out`, where the decoder may put it (see `Decoder.decode`), a view of it or
    another array. With `or_host`, the host decodes where the device of `decoder` is unusable.

    Raises `SelectionError`, `MetadataError`, `ShardIndexError`, `CorruptChunkError`, `StoreReadError`,
    `HostMemoryError`.
    """
    spec, outer = stored.spec, outer_selection(selection, stored.shape)
    if isinstance(spec, Unplanned):
        return outer.restore(read_by_zarr(stored, outer.selectors, decoder, or_host=or_host))
    try:
        target = box_target(outer, spec.grid)
        return outer.restore(_read_target(stored, spec, target, decoder, out, or_host=or_host))
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, outer.shape, err) from err


def read_points(stored: StoredArray, points: tuple[Any, ...], decoder: Decoder, *, or_host: bool = False) -> Any:
    """Read single elements: one integer array per axis, broadcast against each other.

    The result has the broadcast shape and is on the decoder's device; dtype, errors and `or_host` are as of `read`.
    """
    spec, arrays = stored.spec, np.broadcast_arrays(*points)
    shape = arrays[0].shape
    if isinstance(spec, Unplanned):
        return read_by_zarr(stored, tuple(arrays), decoder, pointwise=True, or_host=or_host).reshape(shape)
    try:
        target = PointTarget(groups=group_points([each.reshape(-1) for each in arrays], spec.grid))
        return _read_target(stored, spec, target, decoder, or_host=or_host).reshape(shape)
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, shape, err) from err


def read_stacked(
    stored: StoredArray, spec: ArraySpec, axes: Sequence[StackAxis], n_samples: int, decoder: Decoder, out: Any = None
) -> Any:
    """Read crops of one array, stacked, as `stack_target` takes them; dtype, device, `out`, errors are as of `read`."""
    shape = (n_samples, *map(sample_length, axes))
    try:
        if decoder.device == "host":  # a GPU may have room for more than the host, and boxes are listed on the host
            _require_room(shape, stored.cast.dtype)
        return _read_target(stored, spec, stack_target(axes, n_samples, spec.grid), decoder, out)
    except MemoryError as err:
        if isinstance(err, GpuZarrError):
            raise
        raise _no_host_memory(spec, shape, err) from err


def read_target(stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder, out: Any = None) -> Any:
    """Read what has been cut at the borders of chunks of an array of this spec; the result has shape `target.shape`.

    Its dtype, device and errors, and `out`, are as of `read`.
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
    """Read until an attempt ends well, or another one is not worth it."""
    source = stored.source
    assert source is not None
    account = counters.local.account
    before = account.stage
    try:
        account.switch("decode")
        if not shown_bars and source.identity not in care_by_store:
            array = decoder.read_at_once(source, spec, target, stored.cast, out)
            if array is not None:
                return array
        attempts = Attempts(source, spec, decoder, or_host=or_host)
        while True:
            try:
                if attempts.is_alone:  # and the error of the last one is gone, with all that it has kept alive
                    return attempts.decoder.alone(lambda: _read_once(stored, spec, target, out, attempts))
                return _read_once(stored, spec, target, out, attempts)
            except Exception as err:
                if not attempts.is_worth_another(err):
                    raise
    finally:
        try:
            account.switch(before)
        finally:  # whatever interrupts this
            account.stage = before


def _read_once(stored: StoredArray, spec: ArraySpec, target: Target, out: Any, attempts: Attempts) -> Any:
    """Read all bytes of a shard from one version of it, and decode them."""
    assert stored.source is not None
    # NumPy refuses shapes beyond what it counts, even where an axis has no elements.
    if math.prod([n or 1 for n in target.shape]) >= _MOST_ELEMENTS:
        raise MemoryError(f"a result of shape {target.shape}")
    snapshot = Snapshot(
        stored.source,
        spec,
        care=attempts.care,
        use_cache=attempts.use_cache,
        cuts_objects=attempts.cuts_objects,
        seen_shards=attempts.seen_shards,
        cuts_short=attempts.decoder.device == "host",
    )
    nbytes = math.prod(target.shape) * np.dtype(stored.cast.dtype).itemsize
    shown = shown_bars[:1]
    progress = ReadProgress(shown[0], target.n_chunks, nbytes) if shown else None
    try:
        tables = ChunkTables(spec, target, snapshot, progress)
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
    counters.add(n_reads=1, n_shards=tables.n_shards, decoded_nbytes=tables.decoded_nbytes)
    return result


def _require_room(shape: tuple[int, ...], dtype: str) -> None:
    """Raise `MemoryError` where NumPy has no room for an array."""
    if math.prod(shape) >= _MOST_ELEMENTS:
        raise MemoryError(f"a result of shape {shape}")
    np.empty(shape, dtype)


def _no_host_memory(spec: ArraySpec, shape: tuple[int, ...], err: MemoryError) -> HostMemoryError:
    """Return the error of a selection that is too large for this machine."""
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
    stored, key = stored_array(array, storage=way), ... if selection is None else selection
    return read(stored, key, decoder_for(device), or_host=device == "auto")


class Attempts:
    """The attempts of one read; with `or_host`, the host decodes where the device of `decoder` is unusable."""

    def __init__(self, source: ObjectSource, spec: ArraySpec, decoder: Decoder, *, or_host: bool) -> None:
        self._source, self._spec, self._or_host = source, spec, or_host
        self.decoder = decoder if not or_host or is_usable(decoder) else decoder_for("host")
        """Decoder of the next attempt."""
        self.care = care_by_store.get(source.identity, Care.USUAL) if care_by_store else Care.USUAL
        """Means by which the next attempt has all bytes of a shard from one version."""
        self.use_cache = True
        """Whether indexes that were read before are of use: False once one may be out of date."""
        self.cuts_objects = not uncut_stores or source.identity not in uncut_stores
        """Whether the next attempt may request an object in pieces."""
        self.seen_shards: dict[str, bool] = {}
        """Keys of shards whose index any attempt has seen, and whether it was read, and not found in the cache."""
        self._versions: VersionConflicts | None = None
        self.is_alone = False
        """Whether the next attempt has the device to itself."""
        self._retried: set[type] = set()

    def is_worth_another(self, err: Exception) -> bool:
        """Say whether to try once more after an error; raises another error where that says more of it.

        An object was replaced, the device lacks memory, has decoded to other bytes than the host, or does not work.
        Errors name the store from here on.
        """
        if isinstance(err, GpuZarrError) and not isinstance(err, OptionError):
            err.within(self._source.name)
        if isinstance(err, PiecesDifferError):
            if err.bears_no_version:
                uncut_stores.add(self._source.identity)
            is_worth_it, self.cuts_objects = self.cuts_objects, False
            return is_worth_it
        if isinstance(err, ObjectChangedError):
            self.use_cache = False
            versions = self._versions = self._versions or VersionConflicts(self._source, self.care)
            is_worth_it, self.care = versions.should_retry(err), versions.care
            return is_worth_it
        if isinstance(err, DeviceUnavailableError) and self._or_host and not is_usable(self.decoder):
            self.decoder = decoder_for("host")
            return True
        if isinstance(err, CorruptChunkError | ShardIndexError):
            changed = changed_metadata(self._source, self._spec.path, self._spec.metadata)
            if changed is not None:
                raise changed.within(self._source.name) from err
        elif isinstance(err, MemoryError) and not isinstance(err, GpuZarrError) and MemoryError not in self._retried:
            self._retried.add(MemoryError)
            host_memory.release_kept()
            return True
        elif type(err) not in self._retried and self.decoder.may_retry(err):
            self._retried.add(type(err))
            self.is_alone = isinstance(err, DeviceMemoryError)
            return True
        return False
