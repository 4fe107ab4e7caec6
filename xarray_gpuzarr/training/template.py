"""Which variables are read for the batches of a dataset, and how what was read becomes a dataset."""

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
from xarray_gpuzarr.training.sources import Source, Stored, in_float32, read_sources, source_of
from xarray_gpuzarr.training.stacks import Boxes

Arrays = dict[Hashable, Any]
"""By name, the samples of each variable that is cut: shape (n_samples, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCut:
    """A variable that every sample has a piece of."""

    dims: tuple[Hashable, ...]
    shape: tuple[int, ...]
    """Shape of one sample."""
    column: tuple[int | None, ...]
    """Per axis, which column of the starts it is cut at; None if it is taken whole."""
    dtype: np.dtype[Any]
    attrs: dict[Any, Any]
    encoding: dict[Any, Any]
    source: Source

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    def boxes(self, start: Column) -> Boxes:
        """Return the boxes of samples that begin at `start`, shape (n, n_dims)."""
        starts = np.zeros((len(start), len(self.dims)), np.int64)
        for axis, column in enumerate(self.column):
            if column is not None:
                starts[:, axis] = start[:, column]
        return Boxes(start=starts, shape=self.shape)

    def shards(self, start: Column) -> Column:
        """Return a number for the shard that each sample begins in, shape (n,)."""
        number = np.zeros(len(start), np.int64)
        borders = self.source.borders or ()
        for of_element, column in zip(borders, self.column, strict=False):
            if column is not None:
                number = number * (int(of_element.max(initial=0)) + 1) + of_element[start[:, column]]
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Variables that the batches of a dataset are made of."""

    whole: Dataset
    """The dataset without what is cut: attributes, indexes, and variables that come along as they are."""
    cuts: Mapping[Hashable, SampleCut]
    names: tuple[Hashable, ...]
    """All variables in the order of the dataset."""
    coords: frozenset[Hashable]
    channels: Channels | None
    """Which variables become one array; None: each has its own."""

    @classmethod
    def of(cls, ds: Dataset, sizes: Mapping[Hashable, int], *, rounds: bool = False, stack: Hashable = None) -> Self:
        """Find out how each variable of a dataset is read. No I/O.

        If `rounds`, data variables of float64 become float32. With `stack`, data variables become one array with a
        dimension of this name.
        """
        dims, cuts = list(sizes), {}
        for name, variable in ds.variables.items():
            if not sizes.keys().isdisjoint(variable.dims):
                is_rounded = rounds and name in ds.data_vars and variable.dtype == np.float64
                source = source_of(variable)
                cuts[name] = SampleCut(
                    dims=variable.dims,
                    shape=tuple(sizes.get(dim, n) for dim, n in zip(variable.dims, variable.shape, strict=True)),
                    column=tuple(dims.index(dim) if dim in sizes else None for dim in variable.dims),
                    dtype=np.dtype(np.float32) if is_rounded else _numpy_dtype(variable),
                    attrs=variable.attrs,
                    encoding=variable.encoding,
                    source=in_float32(source) if is_rounded else source,
                )
        whole = ds.drop_dims(dims)
        channels = None if stack is None else Channels.of(ds, stack, {name: cut.dtype for name, cut in cuts.items()})
        if channels is not None:
            channels.require_one_device({name: cut.source for name, cut in cuts.items()})
        return cls(whole=whole, cuts=cuts, names=tuple(ds.variables), coords=frozenset(ds.coords), channels=channels)

    @property
    def lazies(self) -> list[LazyArray]:
        """Arrays that are read from stores."""
        return [cut.source.parts.lazy for cut in self.cuts.values() if isinstance(cut.source, Stored)]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return sum(cut.nbytes for cut in self.cuts.values())

    def read(self, start: Column, stop: Stop) -> Arrays:
        """Read the samples that begin at `start`, shape (n, n_dims), to the devices of their variables, in C order."""
        sources = {name: cut.source for name, cut in self.cuts.items()}
        boxes = {name: cut.boxes(start) for name, cut in self.cuts.items()}
        channels = self.channels
        if channels is None:
            return read_sources(sources, boxes, stop)
        shape = (len(start), len(channels.names), *self.cuts[channels.names[0]].shape)
        stacked = channels.allocate(sources, shape)
        rooms = {name: stacked[:, number] for number, name in enumerate(channels.names)}
        return read_sources(sources, boxes, stop, rooms) | {channels.dim: stacked}

    def shards(self, start: Column) -> Column:
        """Return a number for the shard of the largest variable that each sample begins in, shape (n,)."""
        stored = [cut for cut in self.cuts.values() if cut.source.borders is not None]
        return max(stored, key=lambda cut: cut.nbytes).shards(start) if stored else np.zeros(len(start), np.int64)

    def batch(self, arrays: Arrays, samples: slice) -> Dataset | DataArray:
        """Return some of the samples that were read; arrays are views."""
        if self.channels is None:
            return self._dataset(arrays, samples)
        channels = self.channels
        coords = self._dataset(arrays, samples).drop_vars(channels.names).coords
        array = DataArray(arrays[channels.dim][samples], coords, (SAMPLE, channels.dim, *channels.dims))
        array.attrs = dict(self.whole.attrs)
        return array.assign_coords({channels.dim: list(channels.names)})

    def _dataset(self, arrays: Arrays, samples: slice) -> Dataset:
        """Return some of the samples that were read as a dataset; its arrays are views."""
        coords: dict[Hashable, Variable] = {}
        data_vars: dict[Hashable, Variable] = {}
        for name in self.names:
            cut = self.cuts.get(name)
            variable = (
                self.whole.variables[name]
                if cut is None
                else Variable((SAMPLE, *cut.dims), arrays[name][samples], cut.attrs, cut.encoding, fastpath=True)
            )
            (coords if name in self.coords else data_vars)[name] = variable
        indexes = dict(self.whole.xindexes)
        dataset = Dataset(data_vars, coords=Coordinates(coords, indexes=indexes), attrs=self.whole.attrs)
        dataset.encoding = dict(self.whole.encoding)
        return dataset


def _numpy_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of a variable, object for one of pandas' own."""
    dtype = variable.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(object)
