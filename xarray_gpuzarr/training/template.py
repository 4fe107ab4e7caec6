"""`Template`: reads the samples of the variables of a dataset, and makes batches of what was read.

A dimension is cut if ``sizes=`` gives the number of elements that a sample has along it. Variables with such a
dimension are read anew for each batch (`CutVariable`). The others come along unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from xarray import Coordinates, DataArray, Dataset, Variable

from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.read.stopping import Stop
from xarray_gpuzarr.training.channels import SAMPLE, Channels
from xarray_gpuzarr.training.sources import Source, StoredSource, in_float32, read_sources, source_of
from xarray_gpuzarr.training.stacks import Boxes

Arrays = dict[Hashable, Any]
"""Variable name -> its samples, shape (n_samples, ...). With ``stack=``, the new dimension -> one array of all samples,
of which the arrays of the data variables are views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVariable:
    """A variable with a dimension that is cut, so that each sample has a different part of it."""

    dims: tuple[Hashable, ...]
    """Dimensions of the variable, and of a sample."""
    shape: tuple[int, ...]
    """Shape of one sample."""
    start_columns: tuple[int | None, ...]
    """For each axis, the column of the samples' starts that applies to it. None if samples have the whole axis."""
    dtype: np.dtype[Any]
    """Dtype of a sample."""
    attrs: dict[Any, Any]
    encoding: dict[Any, Any]
    source: Source
    """Reads the samples."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def boxes(self, start: Column) -> Boxes:
        """Return the boxes of samples in this variable, given their starts, shape (n, n_dims)."""
        starts = np.zeros((len(start), len(self.dims)), np.int64)
        for axis, column in enumerate(self.start_columns):
            if column is not None:
                starts[:, axis] = start[:, column]
        return Boxes(start=starts, shape=self.shape)

    def shard_numbers(self, start: Column) -> Column | None:
        """Return the number of the shard that each sample begins in, shape (n,), given the starts, shape (n, n_dims).

        The numbers of shards are in C order of those axes that are cut. Returns None for a source without shards.
        """
        shard_numbers = self.source.shard_numbers
        if shard_numbers is None:
            return None
        numbers = np.zeros(len(start), np.int64)
        for shard_of_element, column in zip(shard_numbers, self.start_columns, strict=True):
            if column is not None:
                n_shards = int(shard_of_element.max(initial=0)) + 1
                numbers = numbers * n_shards + shard_of_element[start[:, column]]
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The variables of a dataset, and how batches are made of them."""

    uncut: Dataset
    """The dataset without the variables that are cut. All batches have its variables, indexes and attributes."""
    cuts: Mapping[Hashable, CutVariable]
    """Variable name -> how samples of it are read, for each variable that is cut."""
    names: tuple[Hashable, ...]
    """Names of all variables, in the order of the dataset."""
    coords: frozenset[Hashable]
    """Names of the variables that are coordinates."""
    channels: Channels | None
    """The variables that are stacked to one array. None if each variable is an array of its own."""

    @classmethod
    def from_dataset(
        cls, ds: Dataset, sizes: Mapping[Hashable, int], *, to_float32: bool = False, stack: Hashable = None
    ) -> Self:
        """Return the template of a dataset. No I/O.

        Parameters
        ----------
        ds : xarray.Dataset
            Dataset that is cut into samples.
        sizes : mapping of hashable to int
            Elements of a sample along each dimension that is cut. The columns of starts are in this order.
        to_float32 : bool
            Whether data variables of float64 become float32.
        stack : hashable, optional
            Name of a new dimension along which the data variables become one array.

        Raises
        ------
        OptionError
            The data variables cannot become one array.
        """
        cuts = {}
        for name, variable in ds.variables.items():
            if not sizes.keys().isdisjoint(variable.dims):
                is_rounded = to_float32 and name in ds.data_vars and variable.dtype == np.float64
                cuts[name] = _cut_variable(variable, sizes, to_float32=is_rounded)
        channels = None
        if stack is not None:
            channels = Channels.from_dataset(ds, stack, {name: cut.dtype for name, cut in cuts.items()})
            channels.require_one_device({name: cut.source for name, cut in cuts.items()})
        return cls(
            uncut=ds.drop_dims(list(sizes)),
            cuts=cuts,
            names=tuple(ds.variables),
            coords=frozenset(ds.coords),
            channels=channels,
        )

    @property
    def lazies(self) -> list[LazyArray]:
        """For each variable that this engine reads, the stored array of its first part."""
        return [cut.source.parts.lazy for cut in self.cuts.values() if isinstance(cut.source, StoredSource)]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample of all variables that are cut."""
        return sum(cut.nbytes for cut in self.cuts.values())

    def variable_names(self) -> list[str]:
        """Return the names of the variables that are cut: in their order along the stacked dimension, or sorted."""
        if self.channels is not None:
            return [str(name) for name in self.channels.names]
        return sorted(map(str, self.cuts))

    def read(self, start: Column, stop: Stop) -> Arrays:
        """Read samples.

        Parameters
        ----------
        start : numpy.ndarray of int64, shape (n, n_dims)
            First element of each sample along the dimensions that are cut.
        stop : Stop
            Ends the read early when it is set.

        Returns
        -------
        dict
            Arrays of shape (n, ...), on the devices of their variables, in C order. With ``stack=``, those of data
            variables are views of the stacked array, and not contiguous.
        """
        sources = {name: cut.source for name, cut in self.cuts.items()}
        boxes = {name: cut.boxes(start) for name, cut in self.cuts.items()}
        channels = self.channels
        if channels is None:
            return read_sources(sources, boxes, stop)
        shape = (len(start), len(channels.names), *self.cuts[channels.names[0]].shape)
        stacked = channels.allocate(sources, shape)
        outs = {name: stacked[:, number] for number, name in enumerate(channels.names)}
        return read_sources(sources, boxes, stop, outs) | {channels.dim: stacked}

    def shard_numbers(self, start: Column) -> Column:
        """Return the number of the shard that each sample begins in, shape (n,), given the starts, shape (n, n_dims).

        The shards are those of the variable with the largest samples. If no variable has shards, all numbers are zero.
        """
        for cut in sorted(self.cuts.values(), key=lambda cut: cut.nbytes, reverse=True):
            numbers = cut.shard_numbers(start)
            if numbers is not None:
                return numbers
        return np.zeros(len(start), np.int64)

    def batch(self, arrays: Arrays, samples: slice) -> Dataset | DataArray:
        """Return a batch of some of the samples that `read` returned. Its arrays are views."""
        if self.channels is None:
            return self._dataset(arrays, samples)
        channels = self.channels
        coords = self._dataset(arrays, samples).drop_vars(channels.names).coords
        array = DataArray(arrays[channels.dim][samples], coords, (SAMPLE, channels.dim, *channels.dims))
        array.attrs = dict(self.uncut.attrs)
        return array.assign_coords({channels.dim: list(channels.names)})

    def _dataset(self, arrays: Arrays, samples: slice) -> Dataset:
        """Return a dataset of some of the samples that `read` returned. Its arrays are views."""
        coords: dict[Hashable, Variable] = {}
        data_vars: dict[Hashable, Variable] = {}
        for name in self.names:
            cut = self.cuts.get(name)
            if cut is None:
                variable = self.uncut.variables[name]
            else:
                variable = Variable((SAMPLE, *cut.dims), arrays[name][samples], cut.attrs, cut.encoding, fastpath=True)
            if name in self.coords:
                coords[name] = variable
            else:
                data_vars[name] = variable
        indexes = dict(self.uncut.xindexes)
        dataset = Dataset(data_vars, coords=Coordinates(coords, indexes=indexes), attrs=self.uncut.attrs)
        dataset.encoding = dict(self.uncut.encoding)
        return dataset


def _cut_variable(variable: Variable, sizes: Mapping[Hashable, int], *, to_float32: bool) -> CutVariable:
    """Return how samples of a variable are read. With `to_float32`, its values become float32."""
    dims = list(sizes)
    source = source_of(variable)
    dtype = _numpy_dtype(variable)
    if to_float32:
        source = in_float32(source)
        dtype = np.dtype(np.float32)
    return CutVariable(
        dims=variable.dims,
        shape=tuple(sizes.get(dim, n) for dim, n in zip(variable.dims, variable.shape, strict=True)),
        start_columns=tuple(dims.index(dim) if dim in sizes else None for dim in variable.dims),
        dtype=dtype,
        attrs=variable.attrs,
        encoding=variable.encoding,
        source=source,
    )


def _numpy_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of a variable, or object if it is one of pandas' own dtypes."""
    dtype = variable.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(object)
