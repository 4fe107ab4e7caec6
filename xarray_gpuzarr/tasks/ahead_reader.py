"""`AheadReader`: an array of which it is known what a read will ask the store for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from xarray_gpuzarr.fetch.ahead import ObjectsAhead, Wanted

Block = tuple[int, ...]
"""Number of a block along each axis."""
Box = tuple[Any, ...]
"""What a task selects along each axis: slices, integers or arrays."""


class AheadReader(ABC):
    """An array whose blocks dask's tasks read; see `backend.chunking.BlockReader`."""

    __slots__ = ()

    @abstractmethod
    def objects_ahead(self) -> ObjectsAhead | None:
        """Return what asks for objects of this array ahead of reads; None where nothing may be asked for."""

    @abstractmethod
    def block_of(self, box: Box) -> Block | None:
        """Return the number of the block that a box is; None if it is no whole block, or that is not known here."""

    @abstractmethod
    def box_of(self, block: Block) -> Box | None:
        """Return the box that a block is; None if there is no such block."""

    @abstractmethod
    def first_requests(self, box: Box) -> list[Wanted]:
        """Return what a read of a box asks for first."""
