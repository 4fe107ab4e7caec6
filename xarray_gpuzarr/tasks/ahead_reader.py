"""`AheadReader`: an array that can list the first requests of a read before the read begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from xarray_gpuzarr.fetch.ahead import ObjectRequest, RequestsAhead

BlockIndex = tuple[int, ...]
"""Position of a block in an array: its number along each axis."""
Box = tuple[Any, ...]
"""Selection of a task along each axis: slices, integers or arrays."""


class AheadReader(ABC):
    """An array whose blocks are read by tasks of dask. `backend.block_reader.BlockReader` implements it."""

    __slots__ = ()

    @abstractmethod
    def requests_ahead(self) -> RequestsAhead | None:
        """Return a new `RequestsAhead` for this array; None if nothing can be requested ahead."""

    @abstractmethod
    def block_of(self, box: Box) -> BlockIndex | None:
        """Return the block that a box selects; None if it is not a whole block, or the blocks are unknown."""

    @abstractmethod
    def box_of(self, block: BlockIndex) -> Box | None:
        """Return the box that selects a block; None if there is no such block."""

    @abstractmethod
    def first_requests(self, box: Box) -> list[ObjectRequest]:
        """Return the requests with which a read of a box begins."""
