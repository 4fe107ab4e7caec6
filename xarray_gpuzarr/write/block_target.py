"""`BlockTarget`: a zarr array that takes blocks, as tasks of dask assign them, written by the compiled loops."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.fetch.object_names import place_of
from xarray_gpuzarr.plan.read_plan import box_target
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.read.stored_array import stored_array
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.write.array_encoder import encoder_for
from xarray_gpuzarr.write.call import WriteCall
from xarray_gpuzarr.write.encoder import Encoder
from xarray_gpuzarr.write.object_locks import turns
from xarray_gpuzarr.write.object_writer import ObjectWriter


class BlockTarget:
    """A stored array, of which blocks are written: ``target[slices] = block``. zarr-python writes what is left to it.

    No setting of zarr-python is changed, and no event loop is used where the array lies in local files.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        self.array = array
        self._writer: tuple[ObjectWriter, Encoder, ArraySpec] | None = None
        self._is_left = False
        """Whether zarr-python has to write everything."""

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
        parts = self._parsed()
        if parts is None:
            return False
        writer, encoder, spec = parts
        native = spec.numpy_dtype.newbyteorder("=")
        slices = _slices(key, self.shape)
        if slices is None or block.dtype.newbyteorder("=") != native:
            return False
        target = box_target(outer_selection(slices, self.shape), spec.grid, self.shape)
        if target.shape != block.shape or not prod(target.shape):
            return False
        whole = None if spec.index else _whole_chunks(slices, self.shape, spec.grid.chunk_shape)
        value = np.asarray(block).astype(native, copy=False)
        call = WriteCall(encoder, target, value, keeps_empty=self.array.config.write_empty_chunks, whole=whole)
        return writer.write_now(call)

    def _keys(self, key: Any) -> list[str]:
        """Return the store keys of the objects that hold a selection; one for all if they are not known."""
        slices = _slices(key, self.shape)
        try:
            lengths = self.array.shards or self.array.chunks
        except (AttributeError, NotImplementedError):  # chunks of different lengths
            slices = None
        if slices is None:
            return [self.array.path]
        bounds = [each.indices(n) for each, n in zip(slices, self.shape, strict=True)]
        ranges = [range(start // n, -(-stop // n)) for (start, stop, _), n in zip(bounds, lengths, strict=True)]
        names = map(self.array.metadata.encode_chunk_key, product(*ranges))
        return [f"{self.array.path}/{name}".lstrip("/") for name in names]

    def _parsed(self) -> tuple[ObjectWriter, Encoder, ArraySpec] | None:
        """Return how the array is written; None if zarr-python has to write it."""
        if self._writer is None and not self._is_left:
            self._writer = _parse(self.array)
            self._is_left = self._writer is None
        return self._writer


def _parse(array: zarr.Array[Any]) -> tuple[ObjectWriter, Encoder, ArraySpec] | None:
    if array.store.read_only or not hasattr(array, "config"):  # which zarr-python before 3.2 does not show
        return None
    stored = stored_array(array, storage="posix")
    if not isinstance(stored.spec, ArraySpec):
        return None
    encoder = encoder_for(array.metadata, stored.spec)
    return None if isinstance(encoder, str) else (ObjectWriter(stored, array.store), encoder, stored.spec)


def _slices(key: Any, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Return what a key selects as slices with a step of 1; None if it is anything else."""
    if key is Ellipsis:
        return (slice(None),) * len(shape)
    if not isinstance(key, tuple) or len(key) != len(shape) or not all(type(each) is slice for each in key):
        return None
    bounds = [each.indices(n) for each, n in zip(key, shape, strict=True)]
    return tuple([slice(start, stop) for start, stop, _ in bounds]) if all(step == 1 for *_, step in bounds) else None


def _whole_chunks(
    slices: tuple[slice, ...], shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> dict[tuple[int, ...], bool]:
    """Return, for each chunk that slices touch, whether they cover all of it that lies in the array."""
    axes: list[list[tuple[int, bool]]] = []
    for each, n, length in zip(slices, shape, chunk_shape, strict=True):
        start, stop, _ = each.indices(n)
        chunks = range(start // length, -(-stop // length))
        axes.append([(c, start <= c * length and min((c + 1) * length, n) <= stop) for c in chunks])
    return {tuple([c for c, _ in chunk]): all(is_all for _, is_all in chunk) for chunk in product(*axes)}
