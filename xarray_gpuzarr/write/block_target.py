"""`BlockTarget`: a zarr array that takes blocks, as tasks of dask assign them, written by the compiled loops."""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.fetch.object_names import place_of
from xarray_gpuzarr.plan.selection import OuterSelection, outer_selection
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
class _Writable:
    """How the compiled loops write an array."""

    writer: ObjectWriter
    encoder: Encoder
    grid: ChunkGrid
    is_sharded: bool
    dtype: np.dtype[Any]
    """Dtype of the elements, in native byte order."""


class BlockTarget:
    """A stored array, of which blocks are written: ``target[slices] = block``. zarr-python writes what is left to it.

    No setting of zarr-python is changed, and no event loop is used where the array lies in local files.

    `behind`, if given, waits for the store in place of the threads that assign blocks; other processes, which get a
    copy of the target, wait themselves.
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
            with turns.held(place_of(self.array.store, self.array.path), self._keys(key)):
                self.array[key] = block

    def write(self, key: Any, block: Any) -> bool:
        """Write a block, a NumPy array, to slices of the array; return False if zarr-python has to."""
        if type(block) not in (np.ndarray, np.memmap):
            return False
        writable = self._writable
        if writable is None or block.dtype.newbyteorder("=") != writable.dtype:
            return False
        shape = self.array.shape
        selection = outer_selection(key, shape)
        slices = _slices_of(selection)
        if slices is None:
            return False
        target = box_target(selection, writable.grid, shape)
        if target.shape != block.shape or not block.size:
            return False
        whole = None if writable.is_sharded else _whole_chunks(slices, shape, writable.grid.chunk_shape)
        value = np.asarray(block).astype(writable.dtype, copy=False)
        keeps_empty = self.array.config.write_empty_chunks
        return writable.writer.write_now(
            WriteCall(writable.encoder, target, value, keeps_empty=keeps_empty, whole=whole), self._behind
        )

    def _keys(self, key: Any) -> list[str]:
        """Return the store keys of the objects that hold a selection; one for all if they are not known."""
        slices = _slices_of(outer_selection(key, self.array.shape))
        try:
            lengths = self.array.shards or self.array.chunks
        except (AttributeError, NotImplementedError):  # chunks of different lengths
            slices = None
        if slices is None:
            return [self.array.path]
        ranges = [range(k.start // n, -(-k.stop // n)) for k, n in zip(slices, lengths, strict=True)]
        names = map(self.array.metadata.encode_chunk_key, product(*ranges))
        return [f"{self.array.path}/{name}".lstrip("/") for name in names]

    @cached_property
    def _writable(self) -> _Writable | None:
        """How the loops write the array; None if zarr-python has to."""
        array = self.array
        if array.store.read_only or not hasattr(array, "config"):  # which zarr-python before 3.2 does not show
            return None
        stored = stored_array(array, storage="posix")
        spec = stored.spec
        if not isinstance(spec, ArraySpec):
            return None
        encoder = encoder_for(array.metadata, spec)
        if isinstance(encoder, str):
            return None
        return _Writable(
            writer=ObjectWriter(stored, array.store),
            encoder=encoder,
            grid=spec.grid,
            is_sharded=spec.index is not None,
            dtype=spec.numpy_dtype.newbyteorder("="),
        )


def _slices_of(selection: OuterSelection) -> tuple[slice, ...] | None:
    """Return a selection as slices with a step of 1; None if it is anything else."""
    slices = [key for key in selection.selectors if isinstance(key, slice) and key.step == 1]
    return tuple(slices) if len(slices) == len(selection.selectors) and not selection.undo else None


def _whole_chunks(
    slices: tuple[slice, ...], shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> dict[tuple[int, ...], bool]:
    """Return, for each chunk that slices touch, whether they cover all of it that lies in the array."""
    axes: list[list[tuple[int, bool]]] = []
    for key, n, length in zip(slices, shape, chunk_shape, strict=True):
        chunks = range(key.start // length, -(-key.stop // length))
        axes.append([(c, key.start <= c * length and min((c + 1) * length, n) <= key.stop) for c in chunks])
    return {tuple([c for c, _ in chunk]): False not in [is_whole for _, is_whole in chunk] for chunk in product(*axes)}
