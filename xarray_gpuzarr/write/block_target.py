"""`BlockTarget`: a zarr array to which tasks of dask assign blocks, which the compiled loops write."""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.fetch.object_names import place_of
from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.read.stored_array import stored_array
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.write.array_encoder import encoder_for
from xarray_gpuzarr.write.call import WriteCall
from xarray_gpuzarr.write.encoder import Encoder
from xarray_gpuzarr.write.object_locks import turns
from xarray_gpuzarr.write.object_writer import ObjectWriter
from xarray_gpuzarr.write.writes_behind import WritesBehind


@record
class _LoopsTarget:
    """An array that the compiled loops can write, and what they need for it."""

    writer: ObjectWriter
    encoder: Encoder
    grid: ChunkGrid
    """Chunks and shards of the array."""
    is_sharded: bool
    dtype: np.dtype[Any]
    """Dtype of the elements, in native byte order."""


class BlockTarget:
    """A stored array that blocks are written to: ``target[slices] = block``.

    zarr-python writes blocks that the compiled loops cannot write. No setting of zarr-python is changed, and its event
    loop is not used for arrays in local files.

    Parameters
    ----------
    array : zarr.Array
        The array.
    behind : WritesBehind, optional
        Waits for stores other than local files, in place of the threads that assign blocks. It is not pickled: in other
        processes the threads wait themselves.
    """

    def __init__(self, array: zarr.Array[Any], behind: WritesBehind | None = None) -> None:
        self.array = array
        self._behind = behind

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array."""
        return np.dtype(self.array.dtype)

    def __getitem__(self, key: Any) -> Any:
        return self.array[key]

    def __setitem__(self, key: Any, block: Any) -> None:
        if not self.write(key, block):
            with turns.hold(place_of(self.array.store, self.array.path), self._object_keys(key)):
                self.array[key] = block

    def write(self, key: Any, block: Any) -> bool:
        """Write a block with the compiled loops.

        Parameters
        ----------
        key : int, slice, Ellipsis, array, or tuple of them
            The elements, as for `zarr.Array.__setitem__`.
        block : array
            Their values.

        Returns
        -------
        bool
            False if zarr-python has to write the block: if it is empty or not a NumPy array, if it has another dtype
            than the array, apart from the byte order, or another shape than the selection, if `key` is neither an
            ellipsis nor one slice with a step of 1 for each axis, or if the loops cannot encode the array.

        Raises
        ------
        GpuZarrError
            As for `ObjectWriter.write_now`.
        """
        if type(block) not in (np.ndarray, np.memmap):  # other subclasses, such as masked arrays, have more than values
            return False
        loops_target = self._loops_target
        if loops_target is None or block.dtype.newbyteorder("=") != loops_target.dtype:
            return False
        shape = self.array.shape
        slices = _contiguous_slices(key, shape)
        if slices is None:
            return False
        target = box_target(OuterSelection(selectors=slices, undo=()), loops_target.grid, shape)
        if target.shape != block.shape or not block.size:
            return False
        # What an unsharded chunk has beyond the end of the array may be lost. A shard at the end counts as written in
        # part, and is read, as by zarr-python: its chunks beyond the end, such as those of a shortened array, are kept.
        is_covered = None
        if not loops_target.is_sharded:
            is_covered = _covered_chunks(slices, shape, loops_target.grid.chunk_shape)
        call = WriteCall(
            loops_target.encoder,
            target,
            np.asarray(block).astype(loops_target.dtype, copy=False),
            keeps_empty=self.array.config.write_empty_chunks,
            is_covered=is_covered,
        )
        return loops_target.writer.write_now(call, self._behind)

    def _object_keys(self, key: Any) -> list[str]:
        """Return the store keys of the objects that hold a selection.

        If they are unknown, return the array's path instead: such writes to one array then take turns.
        """
        slices = _contiguous_slices(key, self.array.shape)
        try:
            object_shape = self.array.shards or self.array.chunks
        except (AttributeError, NotImplementedError):  # what zarr-python raises if chunks have different lengths
            return [self.array.path]
        if slices is None:
            return [self.array.path]
        ranges = [range(s.start // n, -(-s.stop // n)) for s, n in zip(slices, object_shape, strict=True)]
        names = map(self.array.metadata.encode_chunk_key, product(*ranges))
        return [f"{self.array.path}/{name}".lstrip("/") for name in names]

    @cached_property
    def _loops_target(self) -> _LoopsTarget | None:
        """The array as the loops write it; None if zarr-python has to."""
        array = self.array
        # `write` needs `config.write_empty_chunks`; zarr-python before 3.2 has no `config`.
        if array.store.read_only or not hasattr(array, "config"):
            return None
        stored = stored_array(array, storage="posix")  # chunks that are written in part are read on the host
        spec = stored.spec
        if not isinstance(spec, ArraySpec):
            return None
        encoder = encoder_for(array.metadata, spec)
        if isinstance(encoder, str):
            return None
        return _LoopsTarget(
            writer=ObjectWriter(stored, array.store),
            encoder=encoder,
            grid=spec.grid,
            is_sharded=spec.index is not None,
            dtype=spec.numpy_dtype.newbyteorder("="),
        )


def _contiguous_slices(key: Any, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Return an index of an array as slices with a step of 1 and with starts and stops that lie in the array.

    Return None if the index is neither an ellipsis nor one such slice for each axis.
    """
    if key is Ellipsis:
        return tuple([slice(0, length, 1) for length in shape])
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) != len(shape):
        return None
    slices = []
    for axis_key, length in zip(keys, shape, strict=True):
        if not isinstance(axis_key, slice):
            return None
        start, stop, step = axis_key.indices(length)
        if step != 1:
            return None
        slices.append(slice(start, max(start, stop), 1))
    return tuple(slices)


def _covered_chunks(
    slices: tuple[slice, ...], shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> dict[tuple[int, ...], bool]:
    """Return, by the coordinates of each chunk that slices touch, whether they cover all of it that lies in the array.

    `shape` is the shape of the array.
    """
    axes: list[list[tuple[int, bool]]] = []
    for key, length, chunk_length in zip(slices, shape, chunk_shape, strict=True):
        axis: list[tuple[int, bool]] = []
        for chunk in range(key.start // chunk_length, -(-key.stop // chunk_length)):
            start = chunk * chunk_length
            stop = min(start + chunk_length, length)
            axis.append((chunk, key.start <= start and stop <= key.stop))
        axes.append(axis)
    covered: dict[tuple[int, ...], bool] = {}
    for chunk_axes in product(*axes):
        coord = tuple([chunk for chunk, _ in chunk_axes])
        covered[coord] = False not in [is_covered for _, is_covered in chunk_axes]
    return covered
