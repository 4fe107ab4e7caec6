"""`choose_samples`: the positions of samples, which are a lattice, random boxes, or given by the caller. Pure.

Samples are boxes of the same shape, and are numbered from 0. Those of a lattice are numbered in C order. `Samples` is
what all epochs have in common, and `Starts` has the positions of one epoch.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xarray_gpuzarr.errors import OptionError, similar_name_hint
from xarray_gpuzarr.process.records import Column

_MOST_SAMPLES = 2**28
"""Largest number of samples in an epoch. The order of so many samples takes 2 GiB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Samples at regular distances, as many as fit into the dataset."""

    counts: tuple[int, ...]
    """Number of samples along each dimension."""
    strides: tuple[int, ...]
    """Distance between the starts of neighbours along each dimension, in elements."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return math.prod(self.counts)

    def starts(self, rng: np.random.Generator) -> Starts:  # noqa: ARG002
        """Return the lattice itself, which is the same in all epochs."""
        return self

    def first_elements(self, sample: Column) -> Column:
        """Return the first elements of samples, shape (n, n_dims), given their numbers, shape (n,)."""
        return np.stack(np.unravel_index(sample, self.counts), axis=1) * np.array(self.strides, np.int64)

    def describe(self) -> str:
        """Return a description that is the same for equal lattices."""
        return f"lattice of {self.counts} at distances {self.strides}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Samples at positions that the caller gave, or that were drawn at random for one epoch."""

    start: Column
    """First element of each sample, shape (n_samples, n_dims)."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.start)

    def starts(self, rng: np.random.Generator) -> Starts:  # noqa: ARG002
        """Return the table itself, since positions that the caller gave are the same in all epochs."""
        return self

    def first_elements(self, sample: Column) -> Column:
        """Return the first elements of samples, shape (n, n_dims), given their numbers, shape (n,)."""
        return self.start[sample]

    def describe(self) -> str:
        """Return a description with a checksum of the positions."""
        return f"{self.n_samples} positions, checksum {zlib.crc32(np.ascontiguousarray(self.start).tobytes()):08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Samples at random positions, other ones in each epoch."""

    n_samples: int
    """Number of samples."""
    spans: tuple[int, ...]
    """Number of possible starts along each dimension."""

    def starts(self, rng: np.random.Generator) -> Starts:
        """Draw the positions of one epoch. Every possible start has the same probability."""
        return Table(start=rng.integers(0, self.spans, (self.n_samples, len(self.spans)), np.int64))

    def describe(self) -> str:
        """Return a description that is the same for boxes drawn in the same way."""
        return f"{self.n_samples} random boxes among {self.spans}"


Samples = Lattice | Table | Random
"""The samples of all epochs. The `state_dict` of batches has the text that `describe` returns, and a state with another
text is refused."""
Starts = Lattice | Table
"""Positions of the samples of one epoch. `first_elements` looks them up by number."""


def choose_samples(
    lengths: Mapping[Hashable, int], sizes: Mapping[Hashable, int], *, stride: Any, random: Any, positions: Any
) -> Samples:
    """Return the samples that a caller of `batches` asks for.

    Parameters
    ----------
    lengths : mapping of hashable to int
        Length of each dimension that is cut.
    sizes : mapping of hashable to int
        Elements of a sample along each of these dimensions, at most its length.
    stride, random, positions
        As the caller gave them to `batches`; they are checked here.

    Raises
    ------
    OptionError
        A value is invalid, or several of the three are given.
    """
    options = {"stride": stride, "random": random, "positions": positions}
    used = [name for name, value in options.items() if value is not None]
    if len(used) > 1:
        raise OptionError(
            "samples are specified in several ways",
            tried=", ".join(f"{name}=" for name in used),
            found="stride= makes a regular grid of boxes, random= draws boxes at random, positions= takes those given",
            do="choose one of these, or none for boxes side by side",
        )
    spans = {dim: lengths[dim] - n + 1 for dim, n in sizes.items()}  # numbers of possible starts
    if random is not None:
        n_samples = require_whole("random", random, 1)
        samples: Samples = Random(n_samples=n_samples, spans=tuple(spans.values()))
    elif positions is not None:
        samples = _table(positions, spans)
    else:
        stride_of_dim = {} if stride is None else require_mapping("stride", stride, sizes)
        strides = {dim: require_whole(f"stride[{dim!r}]", stride_of_dim.get(dim, n), 1) for dim, n in sizes.items()}
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
    """Return the value of an option as an int.

    Raises
    ------
    OptionError
        It is not a whole number of at least `least`.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise OptionError(
            f"unusable {name}=",
            tried=f"{name}={value!r}"[:200],
            found=f"not a whole number of at least {least}",
            do=f"give {name}= such a number",
        )
    return int(value)


def require_mapping(name: str, value: Any, known: Mapping[Hashable, Any]) -> Mapping[Hashable, Any]:
    """Return the value of an option, a mapping.

    Raises
    ------
    OptionError
        It is not a mapping, is empty, or has keys that are not dimensions in `known`.
    """
    if not isinstance(value, Mapping) or not value:
        raise OptionError(
            f"unusable {name}=",
            tried=f"{name}={value!r}"[:200],
            found="no dimension" if isinstance(value, Mapping) else "not a mapping from dimensions",
            do=f'give {name}= a mapping such as {{"time": ...}}',
        )
    unknown = [dim for dim in value if dim not in known]
    if unknown:
        do = "name them in sizes= first, or use those of sizes="
        if name == "sizes":
            do = "use dimensions of the dataset"
        raise OptionError(
            f"unknown dimensions in {name}=",
            tried=f"{name}= with " + ", ".join(map(repr, unknown)),
            found="valid dimensions: " + ", ".join(map(repr, known)),
            do=do + similar_name_hint(str(unknown[0]), known),
        )
    return value


def _table(positions: Any, spans: Mapping[Hashable, int]) -> Table:
    """Return the samples at the `positions` of a caller. `spans` has the number of possible starts per dimension."""
    starts_of_dim = require_mapping("positions", positions, spans)
    columns = {dim: _starts_along(dim, starts_of_dim.get(dim), span) for dim, span in spans.items()}
    n_starts = {dim: len(column) for dim, column in columns.items()}
    if len(set(n_starts.values())) > 1 or not min(n_starts.values()):
        raise OptionError(
            "unusable positions=",
            tried=", ".join(f"{n} along {dim!r}" for dim, n in n_starts.items()),
            found="the lengths differ" if min(n_starts.values()) else "no sample at all",
            do="give one start for each sample along every dimension",
        )
    return Table(start=np.stack(list(columns.values()), axis=1))


def _starts_along(dim: Hashable, starts: Any, span: int) -> Column:
    """Return the starts that a caller gave for one dimension, shape (n_samples,).

    Raises
    ------
    OptionError
        They are no list of whole numbers, or one of them is not from 0 to `span` - 1.
    """
    try:
        column = None if starts is None else np.asarray(starts)
    except (TypeError, ValueError):  # an array on a GPU, or a ragged list
        column = None
    # NumPy makes floats of an empty list. `_table` refuses that, with another message.
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
