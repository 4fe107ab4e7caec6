"""Chunks that were staged: where they lie on the device, and what is known of their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, join
from xarray_gpuzarr.decoders.cuda.batches.streams import Filters, Streams
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Chunks
from xarray_gpuzarr.decoders.cuda.decoding.shadows import NO_SHADOWS, Shadows, join_shadows
from xarray_gpuzarr.process.records import record

Column = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@record
class Staged:
    """Chunks on their way to the device. Columns have one row per chunk of the pieces that were staged, in order."""

    memories: Sequence[DeviceMemory]
    """Where the chunks lie; belong to the workspace's `copy` stream."""
    address: Addresses
    """shape (n,): device address of the chunk; 0 if its object does not exist."""
    nbytes: Column
    """shape (n,): length in bytes, without checksums that have been checked."""
    streams: Streams
    """Of the chunks that crossed encoded, numbered as the rows."""
    filters: Filters
    """Likewise."""
    encoded: Flags
    """shape (n,): whether the chunk crossed encoded."""
    shadows: Shadows = NO_SHADOWS
    """Of chunks that the host has decoded as well."""

    @classmethod
    def of_decoded(cls, memories: Sequence[DeviceMemory], address: Addresses, nbytes: Column) -> Self:
        """Return chunks that cross decoded."""
        return cls(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=Streams.none(),
            filters=Filters.none(),
            encoded=np.zeros(len(address), np.bool_),
        )


def put_together(staged: Sequence[Staged], rows: Column, *, has_elements: bool) -> Chunks:
    """Put the segments of a batch together.

    Parameters
    ----------
    staged : sequence of Staged
        The segments, in order.
    rows : int64 of shape (n, k)
        As `ReadPlan.row`: of staged chunks, then of missing ones.
    has_elements : bool
        Whether chunks that crossed encoded have codecs of elements that are still to be undone.
    """
    if not staged:
        staged = [Staged.of_decoded([], NO_ROWS.view(np.uint64), NO_ROWS)]
    counts = [len(s.address) for s in staged]
    address, streams = _joined([s.address for s in staged]), join([s.streams for s in staged], counts)
    stored, missing = rows[: len(address)], rows[len(address) :]
    if not streams.one_each and not address.all():
        missing = np.concatenate([stored[address == 0], missing])
    return Chunks(
        address=address,
        nbytes=_joined([s.nbytes for s in staged]),
        rows=stored,
        missing=missing,
        streams=streams,
        filters=join([s.filters for s in staged], counts),
        elements=np.flatnonzero(_joined([s.encoded for s in staged])) if has_elements else NO_ROWS,
        shadows=join_shadows([s.shadows for s in staged], counts),
    )


def _joined[Scalar: np.generic](columns: Sequence[npt.NDArray[Scalar]]) -> npt.NDArray[Scalar]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
