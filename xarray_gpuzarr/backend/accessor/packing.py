"""Blocks of dask packed as xarray packs them, one slab that fits a cache at a time.

xarray packs whole blocks, one arithmetic operation after another, which takes several times their memory. A slab goes
through the same operations: those of the dask graph that xarray has built, or xarray's coders for an array of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import Any, Self

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.core import get_dependencies
from xarray import Variable
from xarray.backends import ZarrStore
from xarray.backends.writers import get_writable_zarr_store
from zarr.storage import MemoryStore

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

_SLAB = 2**16
"""Number of elements that are packed at once: half a megabyte of float64. Twice as many took three times as long."""
NUMBERS, TIMES = "biufc", "mM"
"""Kinds of dtypes whose elements xarray packs one by one, times in blocks of dask only."""

Pack = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Encode elements, shape (n,), as they are stored."""


class PackedByGraph:
    """The operations of a dask graph that xarray has built to encode an array, for elements of NumPy.

    `encoded` is the encoded array and `original` the array that it was made of.
    """

    def __init__(self, encoded: da.Array, original: da.Array) -> None:
        first_block = (0,) * encoded.ndim
        self._source, self._result = (original.name, *first_block), (encoded.name, *first_block)
        graph = encoded.dask.cull({self._result})
        below = original.dask.layers.keys()
        tasks = {key: task for key, task in graph.items() if _layer(key) not in below}
        needed = {key: {*get_dependencies(graph, key)} for key in tasks}
        sources = {key for keys in needed.values() for key in keys} - tasks.keys()
        self.is_complete = sources == {self._source} and all(needed.values())
        """Whether the operations need a block of `original`, and nothing else, such as an offset for each column."""
        order = TopologicalSorter({key: keys & tasks.keys() for key, keys in needed.items()}).static_order()
        self._steps = [(key, tasks[key]) for key in order]
        self.__name__ = f"packed-{encoded.name}"

    def __dask_tokenize__(self) -> object:
        return self._result

    def __call__(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return elements encoded, shape (n,)."""
        results = {self._source: elements}
        for key, task in self._steps:  # without a scheduler of dask, which takes longer than they do
            results[key] = task(results)
        return results[self._result]


def _layer(key: Any) -> Any:
    """Return the name of the layer of a dask graph that a key belongs to."""
    return key[0] if isinstance(key, tuple) else key


class PackedByCoders:
    """xarray's coders for elements of NumPy, given the name, the attributes and the encoding of a variable."""

    def __init__(self, name: Any, attrs: Mapping[str, Any], encoding: Mapping[str, Any], zarr_format: int) -> None:
        self._name, self._zarr_format = name, zarr_format
        self._attrs, self._encoding = dict(attrs), dict(encoding)

    def __call__(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return elements encoded, shape (n,)."""
        variable = Variable("element", elements, dict(self._attrs), dict(self._encoding))
        encoded: npt.NDArray[Any] = _kept_encoder(self._zarr_format).encode_variable(variable, self._name).values
        return encoded


def encoder(zarr_format: int | None) -> ZarrStore:
    """Return a store of xarray that encodes variables for a format, and to which nothing is written."""
    return get_writable_zarr_store(MemoryStore(), zarr_format=zarr_format, consolidated=False)


_kept_encoder = cache(encoder)
"""Every slab needs one, and to make it takes several times as long as to encode the slab."""


@record
class Misfit:
    """A number that the stored dtype has no place for."""

    value: float
    found: str
    """Value as which it is stored, in words."""


@record
class ValueCheck:
    """Check whether values fit the dtype in which a variable is stored."""

    name: Any
    """Name of the variable."""
    dtype: np.dtype[Any]
    """Stored dtype."""
    scale: float
    offset: float
    """``stored * scale + offset`` is what is read."""
    has_fill_value: bool
    """Whether NaN is stored as something else."""

    @classmethod
    def of(cls, name: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> Self | None:
        """Return the check of a variable, given the encoding that packs it; None if values are not numbers there."""
        numbers = [np.asarray(encoding.get(key, default)) for key, default in (("scale_factor", 1), ("add_offset", 0))]
        if encoding.get("_Unsigned") is not None or any(n.size != 1 or n.dtype.kind not in NUMBERS for n in numbers):
            return None
        scale, offset = (float(number.reshape(-1)[0].real) for number in numbers)
        has_fill_value = any(encoding.get(key) is not None for key in ("_FillValue", "missing_value"))
        return cls(name=name, dtype=dtype, scale=scale, offset=offset, has_fill_value=has_fill_value)

    def misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a number that is stored as another one: the smallest or the largest of some, or NaN; None if none is.

        Both arrays have one shape, and elements in one order.
        """
        if values.dtype.kind not in "iuf" or self.dtype.kind not in "iuf" or not values.size:
            return None
        flat, flat_stored = values.reshape(-1), stored.reshape(-1)
        is_nan = np.isnan(flat)
        if is_nan.any():
            if self.dtype.kind != "f" and not self.has_fill_value:
                return Misfit(value=math.nan, found="NaN, and no _FillValue to store it as")
            flat, flat_stored = flat[~is_nan], flat_stored[~is_nan]
        precision = max(1e-6, 8 * float(np.finfo(values.dtype).eps)) if values.dtype.kind == "f" else 1e-6
        for position in (int(flat.argmin()), int(flat.argmax())) if flat.size else ():
            value, found = float(flat[position]), float(flat_stored[position])
            if self.dtype.kind == "f":
                is_kept = math.isfinite(found) or not math.isfinite(value)
            else:
                tolerance = abs(self.scale) + precision * (abs(value) + abs(self.offset))
                is_kept = math.isfinite(value) and abs(found * self.scale + self.offset - value) <= tolerance
            if not is_kept:
                return Misfit(value=value, found=f"the value {value}, which is stored as {found}")
        return None

    def error(self, misfit: Misfit, block: npt.NDArray[Any], first: Sequence[int]) -> OptionError:
        """Return the error of a number of a block, whose first element has the indices `first`."""
        is_it = np.isnan(block) if math.isnan(misfit.value) else block == misfit.value
        inside = np.unravel_index(int(is_it.argmax()), block.shape)
        place = tuple([start + int(i) for start, i in zip(first, inside, strict=True)])
        found = f"{misfit.found}, at {place}"
        return OptionError(
            f"values of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, scale_factor {self.scale}, add_offset {self.offset}",
            found=found,
            do="choose another dtype, scale_factor or add_offset, give a _FillValue, or mask these values; "
            "check_values=False lets xarray store other numbers",
        )


@record
class SlabPacker:
    """Packs blocks slab by slab."""

    pack: Pack
    dtype: np.dtype[Any]
    """Stored dtype."""
    check: ValueCheck | None
    starts: tuple[tuple[int, ...], ...]
    """First index of each block along each axis."""

    def __call__(self, block: npt.NDArray[Any], block_id: Sequence[int]) -> npt.NDArray[Any]:
        """Return a block encoded, of the same shape, in C order."""
        slabs = np.nditer(
            [block, None],
            flags=["external_loop", "buffered", "zerosize_ok"],
            op_flags=[["readonly"], ["writeonly", "allocate"]],
            op_dtypes=[block.dtype, self.dtype],
            buffersize=_SLAB,
        )
        with slabs:
            for values, out in slabs:
                out[...] = self.pack(values)
                misfit = None if self.check is None else self.check.misfit(values, out)
                if misfit is not None and self.check is not None:
                    first = [starts[number] for starts, number in zip(self.starts, block_id, strict=True)]
                    raise self.check.error(misfit, block, first)
            return slabs.operands[1]


def in_slabs(encoded: da.Array, original: da.Array, pack: Pack | None, check: ValueCheck | None) -> da.Array:
    """Return an encoded array whose blocks are packed in slabs; `encoded` itself where that is not possible.

    `original`, of the same shape, is what it was made of. `pack` encodes elements, those of the graph of `encoded` if
    it is None.
    """
    if encoded.name == original.name or encoded.numblocks != original.numblocks:
        return encoded
    if pack is None:
        pack = PackedByGraph(encoded, original)
        if not pack.is_complete:
            return encoded
    sample = pack(np.zeros(1, original.dtype))
    if sample.shape != (1,) or sample.dtype != encoded.dtype:  # text, of which elements become several
        return encoded
    starts = tuple([tuple(accumulate(lengths[:-1], initial=0)) for lengths in original.chunks])
    packer = SlabPacker(pack=pack, dtype=encoded.dtype, check=check, starts=starts)
    meta = np.empty((0,) * encoded.ndim, encoded.dtype)
    packed: da.Array = da.map_blocks(packer, original, dtype=encoded.dtype, meta=meta, name=f"packed-{encoded.name}")
    return packed
