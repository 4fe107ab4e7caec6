"""`DatasetInShards`: the variables of a dataset in dask chunks of whole shards, with the layout in their encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore

from xarray_gpuzarr.backend.accessor.block_writer import Original
from xarray_gpuzarr.backend.accessor.encodings import REPLACED, Layout, Size, layout_of
from xarray_gpuzarr.backend.accessor.packing import NUMBERS, TIMES, PackedByCoders
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.records import record

_SMALL_NBYTES = 2**24
"""Variables of at most this size that are no dask arrays are written at once, which takes as long as in tasks."""
_SHOWN = 5
"""Number of chunk lengths that an error lists."""


@record
class Place:
    """The shards of a stored array, and where a variable goes in it, along the variable's dimensions."""

    shards: tuple[int, ...]
    """Shape of a shard, or of a chunk if there are no shards."""
    starts: tuple[int, ...]
    """First element along each dimension."""


class DatasetInShards:
    """A dataset that is to be written; see `write_dataset` for its parts."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        chunks: Size,
        shards: Size | None,
        compressors: Any,
        changes: Mapping[Any, Mapping[str, Any]],
        rechunk: bool,
    ) -> None:
        self.dataset = dataset
        self._chunks, self._shards, self._compressors = chunks, shards, compressors
        self._changes, self._rechunk = changes, rechunk

    def prepare(self, target: ZarrStore, append_dim: Any) -> tuple[Dataset, dict[str, Original]]:
        """Return the dataset in chunks of whole shards of `target`, and its variables by the paths of their arrays.

        Raises `OptionError` if chunks of dask end inside of shards, and what xarray raises for dtypes that it cannot
        encode.
        """
        existing = {*target.array_keys()}
        layout = layout_of(self.dataset.dims, self._chunks, self._shards, target.zarr_group.metadata.zarr_format)
        originals: dict[str, Original] = {}
        for name, each in self.dataset.variables.items():
            variable = each.copy(deep=False)
            if variable.size == 0:
                variable.load()
            if name in existing:
                original = self._added(target, name, variable, append_dim)
            else:
                original = self._new(target, name, variable, layout)
            originals[_path_of(name)] = original
        variables = {original.name: original.variable for original in originals.values()}
        data = {name: variables[name] for name in self.dataset.data_vars}
        # Without indexes: of dimensions that have none, xarray would make some.
        coords = Coordinates({name: variables[name] for name in self.dataset.coords}, indexes={})
        return Dataset(data, coords, self.dataset.attrs), originals

    def _new(self, target: ZarrStore, name: Any, variable: Variable, layout: Layout) -> Original:
        """Prepare a variable that is not stored yet."""
        place = self._set_encoding(name, variable, layout)
        original = self._original(target, name, variable, place, dict(variable.encoding))
        cut = original.variable
        if original.pack is not None:
            cut.encoding = _with_dtype_of_numpy(name, variable, cut, target)
        elif cut.dtype.kind in NUMBERS:
            target.encode_variable(_sample(cut) if cut.chunks is None else cut, name)
        return original

    def _added(self, target: ZarrStore, name: Any, variable: Variable, append_dim: Any) -> Original:
        """Prepare a variable that is added to a stored array, with its dimensions in the order of the array's."""
        stored = target.open_store_variable(name)
        place = None
        if {*stored.dims} == {*variable.dims}:  # else xarray says what is wrong
            variable = variable.transpose(*stored.dims)
            place = self._place(target, name, stored.dims, append_dim)
        if variable.chunks is None:
            variable.load()  # as xarray does: it may be read from this store
        return self._original(target, name, variable, place, _encoding_of(stored))

    def _original(
        self, target: ZarrStore, name: Any, variable: Variable, place: Place | None, encoding: Mapping[str, Any]
    ) -> Original:
        """Cut a variable at the borders of shards; `encoding` is that by which xarray encodes it."""
        cut, pack = self._cut(name, variable, place), None
        if cut.chunks is not None and variable.chunks is None:
            pack = PackedByCoders(variable.attrs, encoding, target.zarr_group.metadata.zarr_format)
        return Original(name=name, variable=cut, encoding=encoding, pack=pack)

    def _set_encoding(self, name: Any, variable: Variable, layout: Layout) -> Place | None:
        """Give a new variable its chunks and shards; return its place, None if xarray or zarr-python choose them."""
        shapes: dict[str, Any] = layout.shapes(name, variable)
        encoding = dict(variable.encoding)
        if shapes or variable.chunks is not None:
            encoding = {key: value for key, value in encoding.items() if key not in REPLACED}
        if self._compressors is not None:
            encoding["compressors"] = self._compressors
        variable.encoding = encoding | shapes | dict(self._changes.get(name, {}))
        shards = variable.encoding.get("shards") or variable.encoding.get("chunks")
        if shards is None or variable.dtype.kind not in NUMBERS + TIMES:
            return None
        return Place(shards=tuple(shards), starts=(0,) * variable.ndim)

    def _place(self, target: ZarrStore, name: Any, dims: Sequence[Any], append_dim: Any) -> Place:
        """Return the place of a variable in a stored array with these dimensions."""
        array: Any = target.members[name]
        shards = array.shards or array.chunks
        self._say_what_is_ignored(name, dims, array.chunks, shards)
        region = target._write_region or {}  # noqa: SLF001  # as slices, once xarray has found them
        starts = []
        for dim, n in zip(dims, array.shape, strict=True):
            start, _, _ = region.get(dim, slice(None)).indices(n)
            starts.append(n if dim == append_dim else start)
        return Place(shards=tuple(shards), starts=tuple(starts))

    def _say_what_is_ignored(
        self, name: Any, dims: Sequence[Any], chunks: Sequence[int], shards: Sequence[int]
    ) -> None:
        """Warn if other lengths are given than the stored array has."""
        for what, given, stored in (("chunks", self._chunks, chunks), ("shards", self._shards, shards)):
            lengths = given if isinstance(given, Mapping) else {}
            for dim, n in zip(dims, stored, strict=True):
                if lengths.get(dim, -1) not in (-1, n):
                    advise(
                        f"ignored {what} of {name!r}",
                        f"{what} of {lengths[dim]} along {dim!r} are ignored: variable {name!r} is stored already",
                        found=f"{what} of {n} in the store",
                        do="leave the sizes out, or write a new store, whose variables get them",
                    )

    def _cut(self, name: Any, variable: Variable, place: Place | None) -> Variable:
        """Return a variable in chunks that end where shards end; as it is if it has such chunks, or is small."""
        if place is None:  # such as text: chunks of one length are all that is asked for
            if not self._rechunk or variable.chunks is None:
                return variable
            return variable.chunk(dict(zip(variable.dims, map(max, variable.chunks), strict=True)))
        if not variable.ndim or not all(variable.shape):
            return variable
        borders = list(map(cut_at_multiples, place.starts, variable.shape, place.shards))
        if variable.chunks is None:
            # xarray finds the units of times in all of them.
            if variable.nbytes <= _SMALL_NBYTES or variable.dtype.kind not in NUMBERS:
                return variable
        else:
            ends = zip(*(map(set, map(accumulate, lengths)) for lengths in (variable.chunks, borders)), strict=True)
            within = [axis for axis, (of_chunks, of_shards) in enumerate(ends) if not of_chunks <= of_shards]
            if not within:
                return variable
            if not self._rechunk:
                raise _chunks_within_shards(name, variable, within[0], place.shards, borders)
        return variable.chunk(dict(zip(variable.dims, borders, strict=True)))


def _path_of(name: Any) -> str:
    """Return the path of the array of a variable in its group, as xarray and zarr-python make it."""
    text = "__values__" if name is None else str(name)
    return "/".join([part for part in text.replace("\\", "/").split("/") if part])


def _encoding_of(stored: Variable) -> dict[str, Any]:
    """Return the encoding by which xarray encodes what is added to a stored variable: that which it reads there."""
    decoded, _, _ = conventions.decode_cf_variables({"stored": stored}, {})
    return dict(decoded["stored"].encoding)


def _sample(variable: Variable) -> Variable:
    """Return a variable of one element, of NumPy, with the attributes and the encoding of another."""
    zeros = np.zeros((1,) * variable.ndim, variable.dtype)
    return Variable(variable.dims, zeros, variable.attrs, variable.encoding)


def _with_dtype_of_numpy(name: Any, variable: Variable, cut: Variable, target: ZarrStore) -> dict[str, Any]:
    """Return an encoding that stores a variable as it is stored without dask, where xarray chooses another dtype."""
    encoded = target.encode_variable(_sample(variable), name)
    with_dask = target.encode_variable(Variable(cut.dims, cut.data, cut.attrs, {**cut.encoding}), name)
    return {**cut.encoding} if encoded.dtype == with_dask.dtype else {**cut.encoding, "dtype": encoded.dtype}


def cut_at_multiples(start: int, n: int, length: int) -> tuple[int, ...]:
    """Cut `n` elements from `start` on at the multiples of a length."""
    first = min(n, length - start % length)
    lengths = [first, *[length] * ((n - first) // length)]
    return tuple(lengths if sum(lengths) == n else [*lengths, n - sum(lengths)])


def _chunks_within_shards(
    name: Any, variable: Variable, axis: int, shards: Sequence[int], borders: Sequence[Sequence[int]]
) -> OptionError:
    assert variable.chunks is not None
    dim, length = variable.dims[axis], shards[axis]
    return OptionError(
        f"chunks of dask end inside of shards of variable {name!r}: two tasks would write parts of one shard",
        tried=f"chunks of {_few(variable.chunks[axis])} along {dim!r}",
        found=f"shards of {length}, so {_few(borders[axis])} are whole ones",
        do=f"give rechunk=True, or chunk before, such as ds.chunk({{{dim!r}: {length}}}), or other shards",
    )


def _few(lengths: Sequence[int]) -> str:
    """Return the first lengths as text."""
    return ", ".join(map(str, lengths[:_SHOWN])) + (", ..." if len(lengths) > _SHOWN else "")
