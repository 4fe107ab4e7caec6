"""`DatasetInShards`: the variables of a dataset in dask chunks of whole shards, with the layout in their encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore
from xarray.backends.zarr import extract_zarr_variable_encoding

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.accessor.block_writer import Original
from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.backend.accessor.encodings import REPLACED, Layout, Size, layout_of
from xarray_gpuzarr.backend.accessor.packing import NUMBERS, TIMES, PackedByCoders
from xarray_gpuzarr.backend.accessor.slices import slices_of
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


@record
class Sizes:
    """Chunk and shard sizes that `to_zarr` is given: see `DatasetAccessor.to_zarr`."""

    chunks: Size
    shards: Size | None
    compressors: Any
    rechunk: bool


class DatasetInShards:
    """A dataset that is to be written.

    Parameters
    ----------
    dataset : xarray.Dataset
        Its arrays are on the host.
    sizes : Sizes
        Chunks, shards and codecs of new variables.
    dims : sequence of hashable
        Dimensions that `sizes` may name: those of the dataset, and of others that are written with it.
    changes : mapping of variable name to mapping
        Entries of the encoding of variables that are to be different.
    is_cut : bool
        Whether large arrays of NumPy become chunks of dask.
    """

    def __init__(
        self,
        dataset: Dataset,
        sizes: Sizes,
        *,
        dims: Sequence[Any],
        changes: Mapping[Any, Mapping[str, Any]],
        is_cut: bool,
    ) -> None:
        self.dataset = dataset
        self._sizes, self._dims, self._changes, self._is_cut = sizes, dims, changes, is_cut

    def prepare(self, target: ZarrStore, append_dim: Any) -> tuple[Dataset, dict[str, Original]]:
        """Return the dataset in chunks of whole shards of `target`, and its variables by the paths of their arrays.

        Raises `OptionError` if chunks of dask end inside of shards, and what xarray raises for dtypes that it cannot
        encode.
        """
        existing = {*target.array_keys()}
        layout = layout_of(self._dims, self._sizes.chunks, self._sizes.shards, target.zarr_group.metadata.zarr_format)
        originals, variables = dict[str, Original](), dict[Any, Variable]()
        for name, each in self.dataset.variables.items():
            variable = each.copy(deep=False)
            if variable.size == 0 or name in self.dataset.xindexes:  # some indexes make other dtypes than they say
                variable.load()
            if name in existing:
                original = self._added(target, name, variable, append_dim)
            else:
                original = self._new(target, name, variable, layout)
            path = _path_of(name)
            if path in originals:
                raise _two_of_one_path(originals[path].name, name, path)
            originals[path] = original
            variables[name] = original.variable
        data = {name: variables[name] for name in self.dataset.data_vars}
        # Without indexes: of dimensions that have none, xarray would make some.
        coords = Coordinates({name: variables[name] for name in self.dataset.coords}, indexes={})
        return Dataset(data, coords, self.dataset.attrs), originals

    def _new(self, target: ZarrStore, name: Any, variable: Variable, layout: Layout) -> Original:
        """Prepare a variable that is not stored yet."""
        place = self._set_encoding(target, name, variable, layout)
        original = self._original(target, name, variable, place, dict(variable.encoding))
        cut = original.variable
        if original.pack is None and cut.dtype.kind in NUMBERS:
            _check_encoding(target, name, cut)
        return original

    def _added(self, target: ZarrStore, name: Any, variable: Variable, append_dim: Any) -> Original:
        """Prepare a variable that is added to a stored array, with its dimensions in the order of the array's."""
        stored = target.open_store_variable(name)
        place = None
        if {*stored.dims} == {*variable.dims}:  # else xarray says what is wrong
            variable = variable.transpose(*stored.dims)
            place = self._place(target, name, stored, append_dim)
        if variable.chunks is None:
            variable.load()  # as xarray does: it may be read from this store
        return self._original(target, name, variable, place, _encoding_of(stored))

    def _original(
        self, target: ZarrStore, name: Any, variable: Variable, place: Place | None, encoding: Mapping[str, Any]
    ) -> Original:
        """Cut a variable at the borders of shards; `encoding` is that by which xarray encodes it.

        One of NumPy is left whole if xarray does not encode its blocks as it encodes all of it, such as with an offset
        for each column.
        """
        cut, pack = self._cut(name, variable, place), None
        if cut.chunks is not None and variable.chunks is None:
            whole = _encoded(target, name, _sample(variable, encoding))
            in_blocks = _encoded(target, name, Variable(cut.dims, cut.data, cut.attrs, dict(encoding)))
            if whole is None or in_blocks is None:
                return Original(name=name, variable=variable, encoding=encoding, pack=None)
            if whole.dtype != in_blocks.dtype:
                cut.encoding = {**cut.encoding, "dtype": whole.dtype}
            pack = PackedByCoders(name, variable.attrs, encoding, target.zarr_group.metadata.zarr_format)
        return Original(name=name, variable=cut, encoding=encoding, pack=pack)

    def _set_encoding(self, target: ZarrStore, name: Any, variable: Variable, layout: Layout) -> Place | None:
        """Give a new variable its chunks and shards; return its place, None if xarray or zarr-python choose them."""
        shapes: dict[str, Any] = layout.shapes(name, variable)
        encoding = dict(variable.encoding)
        if shapes or variable.chunks is not None:
            encoding = {key: value for key, value in encoding.items() if key not in REPLACED}
        if self._sizes.compressors is not None:
            zarr_format = target.zarr_group.metadata.zarr_format
            encoding["compressors"] = named_codecs(self._sizes.compressors, zarr_format)
        variable.encoding = encoding | shapes | dict(self._changes.get(name, {}))
        if variable.dtype.kind not in NUMBERS + TIMES or not {"chunks", "shards"} & variable.encoding.keys():
            return None
        # `changes` may have one length for all axes, "auto", or lengths that xarray ignores or refuses.
        zarr_format = target.zarr_group.metadata.zarr_format
        for_zarr = extract_zarr_variable_encoding(variable, name=name, zarr_format=zarr_format)
        shards = for_zarr.get("shards") or for_zarr["chunks"]
        if not isinstance(shards, tuple) or not isinstance(for_zarr["chunks"], tuple):  # zarr-python chooses them
            return None
        whole_axes = [max(1, n) for n in variable.shape]
        shards = tuple([n if length == -1 else length for n, length in zip(whole_axes, shards, strict=True)])
        return Place(shards=shards, starts=(0,) * variable.ndim) if all(n > 0 for n in shards) else None

    def _place(self, target: ZarrStore, name: Any, stored: Variable, append_dim: Any) -> Place | None:
        """Return the place of a variable in a stored one; None if xarray will refuse its chunks of several lengths."""
        chunks = stored.encoding["chunks"]
        shards = stored.encoding["shards"] or chunks
        if not all(isinstance(n, int) for n in (*chunks, *shards)):
            return None
        self._say_what_is_ignored(name, stored.dims, chunks, shards)
        region = target._write_region or {}  # noqa: SLF001  # as slices, once xarray has found them
        starts = []
        for dim, n in stored.sizes.items():
            end = region.get(dim, slice(None)).stop
            if end is not None and end > n:
                raise _outside(name, dim, region[dim], n)
            start, _, _ = region.get(dim, slice(None)).indices(n)
            starts.append(n if dim == append_dim else start)
        return Place(shards=tuple(shards), starts=tuple(starts))

    def _say_what_is_ignored(
        self, name: Any, dims: Sequence[Any], chunks: Sequence[int], shards: Sequence[int]
    ) -> None:
        """Warn if other lengths are given than the stored array has."""
        for what, given, stored in (("chunks", self._sizes.chunks, chunks), ("shards", self._sizes.shards, shards)):
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
            if not self._sizes.rechunk or variable.chunks is None:
                return variable
            return variable.chunk(dict(zip(variable.dims, map(max, variable.chunks), strict=True)))
        if not variable.ndim or not all(variable.shape):
            return variable
        borders = list(map(cut_at_multiples, place.starts, variable.shape, place.shards))
        if variable.chunks is None:
            is_small = variable.nbytes <= _SMALL_NBYTES
            # xarray finds the units of times in all of them.
            is_whole = is_small or not self._is_cut or variable.dtype.kind not in NUMBERS
            return variable if is_whole else _in_blocks(variable, borders)
        ends = zip(*(map(set, map(accumulate, lengths)) for lengths in (variable.chunks, borders)), strict=True)
        within = [axis for axis, (of_chunks, of_shards) in enumerate(ends) if not of_chunks <= of_shards]
        if not within:
            return variable
        if not self._sizes.rechunk:
            raise _chunks_within_shards(name, variable, within[0], place.shards, borders)
        return variable.chunk(dict(zip(variable.dims, borders, strict=True)))


def _in_blocks(variable: Variable, borders: Sequence[tuple[int, ...]]) -> Variable:
    """Return a variable that is no array of dask in blocks of dask, without a copy of what it has in memory."""
    array = array_in_memory(variable)
    if isinstance(array, np.ndarray):
        return Variable(variable.dims, slices_of(array, borders), variable.attrs, variable.encoding)
    # False: a name at random, since nothing is computed again.
    return variable.chunk(dict(zip(variable.dims, borders, strict=True)), name=False)  # type: ignore[arg-type]


def _path_of(name: Any) -> str:
    """Return the path of the array of a variable in its group, as xarray and zarr-python make it."""
    text = "__values__" if name is None else str(name)
    return "/".join([part for part in text.replace("\\", "/").split("/") if part])


def _two_of_one_path(name: Any, other: Any, path: str) -> OptionError:
    return OptionError(
        f"variables {name!r} and {other!r} are stored in one array",
        tried=f"to write both to {path!r}",
        found="names that Zarr takes for one path",
        do="rename one of them",
    )


def _encoding_of(stored: Variable) -> dict[str, Any]:
    """Return the encoding by which xarray encodes what is added to a stored variable: that which it reads there."""
    decoded, _, _ = conventions.decode_cf_variables({"stored": stored}, {})
    return dict(decoded["stored"].encoding)


def _sample(variable: Variable, encoding: Mapping[str, Any]) -> Variable:
    """Return a variable of one element, of NumPy, with the attributes of another."""
    zeros = np.zeros((1,) * variable.ndim, variable.dtype)
    return Variable(variable.dims, zeros, variable.attrs, dict(encoding))


def _encoded(target: ZarrStore, name: Any, variable: Variable) -> Variable | None:
    """Return a variable as xarray encodes it; None if it cannot."""
    try:
        encoded: Variable = target.encode_variable(variable, name)
    except Exception:  # noqa: BLE001  # of any kind: it is xarray's to say, of all of the variable
        return None
    return encoded


def _check_encoding(target: ZarrStore, name: Any, variable: Variable) -> None:
    """Let xarray refuse what it cannot encode: arrays of NumPy by one element, or by all if it cannot encode one."""
    if variable.chunks is None and _encoded(target, name, _sample(variable, variable.encoding)) is not None:
        return
    target.encode_variable(variable, name)


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


def _outside(name: Any, dim: Any, region: slice, n: int) -> OptionError:
    return OptionError(
        f"a region that lies outside of variable {name!r} in the store",
        tried=f"region={{{dim!r}: slice({region.start}, {region.stop})}}",
        found=f"{n} elements along {dim!r}",
        do=f"write to a region inside, or make the variable longer with append_dim={dim!r}",
    )


def _few(lengths: Sequence[int]) -> str:
    """Return the first lengths as text."""
    return ", ".join(map(str, lengths[:_SHOWN])) + (", ..." if len(lengths) > _SHOWN else "")
