"""The positions of samples: a lattice, random boxes, or positions that the caller gives. Pure.

A sample is a box of one shape. It is known by a number; numbers of a lattice count in C order.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xarray_gpuzarr.errors import OptionError, perhaps
from xarray_gpuzarr.process.records import Column

_MOST_SAMPLES = 2**28
"""Largest number of samples in an epoch: an order of so many takes 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Samples at even distances, as many as fit."""

    counts: tuple[int, ...]
    """Samples along each dimension."""
    strides: tuple[int, ...]
    """Elements between starts along each dimension."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return math.prod(self.counts)

    def starts(self, rng: np.random.Generator) -> Starts:  # noqa: ARG002
        """Return the lattice."""
        return self

    def of(self, sample: Column) -> Column:
        """Return the first elements of samples, shape (n, n_dims)."""
        return np.stack(np.unravel_index(sample, self.counts), axis=1) * np.array(self.strides, np.int64)

    def describe(self) -> str:
        """Name the lattice."""
        return f"lattice of {self.counts} at distances {self.strides}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Samples at positions that were given, or drawn at random."""

    start: Column
    """shape (n_samples, n_dims)"""

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.start)

    def starts(self, rng: np.random.Generator) -> Starts:  # noqa: ARG002
        """Return the table."""
        return self

    def of(self, sample: Column) -> Column:
        """Return the first elements of samples, shape (n, n_dims)."""
        return self.start[sample]

    def describe(self) -> str:
        """Name the table by a checksum."""
        return f"{self.n_samples} positions, checksum {zlib.crc32(np.ascontiguousarray(self.start).tobytes()):08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Samples that are drawn anew in each epoch."""

    n_samples: int
    """Number of samples."""
    spans: tuple[int, ...]
    """Possible starts along each dimension."""

    def starts(self, rng: np.random.Generator) -> Starts:
        """Draw every start with equal chance."""
        return Table(start=rng.integers(0, self.spans, (self.n_samples, len(self.spans)), np.int64))

    def describe(self) -> str:
        """Name what is drawn."""
        return f"{self.n_samples} random boxes among {self.spans}"


Samples = Lattice | Table | Random
"""The boxes of an epoch; `describe` returns a short text that is the same where the boxes are."""
Starts = Lattice | Table
"""Where the samples of one epoch begin."""


def choose_samples(
    lengths: Mapping[Hashable, int], sizes: Mapping[Hashable, int], *, stride: Any, random: Any, positions: Any
) -> Samples:
    """Return the samples that a caller asks for, of datasets of such lengths along the dimensions of `sizes`.

    The other arguments are as in `batches`, and not checked yet: an `OptionError` says what is wrong with them.
    """
    ways = {"stride": stride, "random": random, "positions": positions}
    named = [name for name, value in ways.items() if value is not None]
    if len(named) > 1:
        raise OptionError(
            "samples are asked for in two ways",
            tried=", ".join(f"{name}=" for name in named),
            found="stride= makes a regular grid of boxes, random= draws boxes at random, positions= takes those given",
            do="choose one of these, or none for boxes side by side",
        )
    spans = {dim: lengths[dim] - n + 1 for dim, n in sizes.items()}
    if random is not None:
        n_samples = require_whole("random", random, 1)
        samples: Samples = Random(n_samples=n_samples, spans=tuple(spans.values()))
    elif positions is not None:
        of_dims = require_mapping("positions", positions, spans)
        columns = {dim: _column(dim, of_dims.get(dim), span) for dim, span in spans.items()}
        n_starts = {dim: len(column) for dim, column in columns.items()}
        if len(set(n_starts.values())) > 1 or not min(n_starts.values()):
            raise OptionError(
                "unusable positions=",
                tried=", ".join(f"{n} along {dim!r}" for dim, n in n_starts.items()),
                found="the lengths differ" if min(n_starts.values()) else "no sample at all",
                do="give one start for each sample along every dimension",
            )
        samples = Table(start=np.stack(list(columns.values()), axis=1))
    else:
        of_dims = {} if stride is None else require_mapping("stride", stride, sizes)
        strides = {dim: require_whole(f"stride[{dim!r}]", of_dims.get(dim, n), 1) for dim, n in sizes.items()}
        counts = tuple(-(-span // strides[dim]) for dim, span in spans.items())
        samples = Lattice(counts=counts, strides=tuple(strides.values()))
    if samples.n_samples > _MOST_SAMPLES:
        raise OptionError(
            "there are more samples than an epoch can have",
            tried=samples.describe(),
            found=f"{samples.n_samples} samples; an epoch has at most {_MOST_SAMPLES}",
            do="give a longer stride=, or random= with the number of boxes of an epoch",
        )
    return samples


def require_whole(name: str, value: Any, least: int) -> int:
    """Return an option if it is a whole number of at least `least`, else raise `OptionError`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise OptionError(
            f"unusable {name}=",
            tried=f"{name}={value!r}"[:200],
            found=f"not a whole number of at least {least}",
            do=f"give {name}= such a number",
        )
    return int(value)


def require_mapping(name: str, value: Any, known: Mapping[Hashable, Any]) -> Mapping[Hashable, Any]:
    """Return an option if it maps dimensions, all of them `known`, to something, else raise `OptionError`."""
    if not isinstance(value, Mapping) or not value:
        raise OptionError(
            f"unusable {name}=",
            tried=f"{name}={value!r}"[:200],
            found="not a mapping from dimensions",
            do=f'give {name}= one, such as {{"time": ...}}',
        )
    unknown = [dim for dim in value if dim not in known]
    if unknown:
        of_sizes = "name them in sizes= first, or use those that it has"
        do = "use dimensions of the dataset" if name == "sizes" else of_sizes
        raise OptionError(
            f"unknown dimensions in {name}=",
            tried=f"{name}= with " + ", ".join(map(repr, unknown)),
            found="valid dimensions: " + ", ".join(map(repr, known)),
            do=do + perhaps(str(unknown[0]), known),
        )
    return value


def _column(dim: Hashable, starts: Any, span: int) -> Column:
    """Return the starts along one dimension."""
    try:
        column = None if starts is None else np.asarray(starts)
    except (TypeError, ValueError):  # a device's array; a ragged list
        column = None
    if column is None or column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        raise OptionError(
            f"unusable positions= along {dim!r}",
            tried=f"{starts!r}"[:200],
            found="no starts" if starts is None else "not a list of whole numbers",
            do="give a one-dimensional array of integers for every dimension of sizes=",
        )
    outside = (column < 0) | (column >= span)
    if outside.any():
        raise OptionError(
            f"positions= along {dim!r} lie outside the dataset",
            tried=f"a sample that begins at {column[outside][0]}",
            found=f"samples fit where they begin at 0 to {span - 1}",
            do="leave out positions from which a whole sample does not fit",
        )
    return column.astype(np.int64)
