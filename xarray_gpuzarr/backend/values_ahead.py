"""Values that xarray looks at while it opens, fetched together: indexes, and the first and last of other times.

xarray reads one index after another, and of each time the first value, then the last. `ValuesAhead` knows the arrays of
all groups that are opened: when it needs the first value, those of all arrays are read at once. zarr-python reads each
of them as ever. What fails is read again when xarray asks for it, so that errors are those of xarray's own engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from xarray_gpuzarr.fetch import requests_at_once, run_on_loop

_MOST_NBYTES = 4 * 1024**2
"""A longer index is read when xarray asks for it: perhaps it does not, and reading takes longer than waiting."""
_SECONDS = 10.0
"""Time after the last step of opening from which on stored values may have changed, and are read anew."""

type Box = tuple[slice, ...]


class ValuesAhead:
    """The arrays of one opening whose values have not been read."""

    def __init__(self) -> None:
        self._waiting: list[ArrayAhead] = []
        self._until = monotonic() + _SECONDS

    def index(self, stock: ZarrArrayWrapper) -> ZarrArrayWrapper:
        """Return an array of which all values are wanted."""
        return self._await(stock, [_whole(stock)]) if _is_short(stock) else self.ends(stock)

    def ends(self, stock: ZarrArrayWrapper) -> ZarrArrayWrapper:
        """Return an array of which the first and the last value are wanted."""
        if _is_short(stock) and _stored(stock).nchunks == 1:
            return self._await(stock, [_whole(stock)])
        return self._await(stock, [(slice(0, 1),) * stock.ndim, tuple(slice(n - 1, n) for n in stock.shape)])

    def fetch(self) -> None:
        """Read what is wanted of all arrays that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            with suppress(Exception):  # of any kind: it comes again when xarray reads the array
                run_on_loop(str(waiting[0].stored.store), lambda: _read_all(waiting))
        self._until = monotonic() + _SECONDS

    def is_over(self) -> bool:
        """Return whether opening was long ago."""
        return monotonic() > self._until

    def _await(self, stock: ZarrArrayWrapper, wanted: Sequence[Box]) -> ZarrArrayWrapper:
        if 0 in stock.shape:
            return stock
        array = ArrayAhead(_stored(stock), wanted, self)
        self._waiting.append(array)
        return array


class ArrayAhead(ZarrArrayWrapper):
    """A stored array, parts of which are read together with those of others.

    Parameters
    ----------
    zarr_array : zarr.Array
    wanted : sequence of tuple of slice
        Boxes that xarray will ask for, with steps of 1.
    ahead : ValuesAhead
    """

    __slots__ = ("_ahead", "known", "stored", "wanted")

    def __init__(self, zarr_array: Any, wanted: Sequence[Box], ahead: ValuesAhead) -> None:
        super().__init__(zarr_array)  # type: ignore[no-untyped-call]
        self.stored = zarr_array
        self.wanted = wanted
        self.known: list[tuple[Box, Any]] = []
        self._ahead: ValuesAhead | None = ahead

    def __reduce__(self) -> tuple[Callable[..., ZarrArrayWrapper], tuple[Any]]:
        return ZarrArrayWrapper, (self.stored,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if self._ahead is not None:
            if self._ahead.is_over():
                self.forget()
            else:
                self._ahead.fetch()
                known = self._known_values(key)
                if known is not None:
                    return known
        return super().__getitem__(key)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Read from the store from now on."""
        self._ahead, self.known = None, []

    def _known_values(self, key: indexing.ExplicitIndexer) -> Any:
        box = _box(key, self.shape)
        for has, values in self.known:
            if box is not None and all(h.start <= b.start and b.stop <= h.stop for h, b in zip(has, box, strict=True)):
                if values.shape == self.shape == tuple(b.stop - b.start for b in box):
                    self.forget()  # an index has all its values now
                return values[tuple(slice(b.start - h.start, b.stop - h.start) for h, b in zip(has, box, strict=True))]
        return None


def _box(key: indexing.ExplicitIndexer, shape: Sequence[int]) -> Box | None:
    """Return what a selection selects if it is a box, with steps of 1."""
    if isinstance(key, indexing.VectorizedIndexer) or not all(isinstance(part, slice) for part in key.tuple):
        return None
    parts = [range(n)[part] for part, n in zip(key.tuple, shape, strict=True)]
    return tuple(slice(p.start, p.stop) for p in parts) if all(len(p) and p.step == 1 for p in parts) else None


def _is_short(stock: ZarrArrayWrapper) -> bool:
    nbytes: int = _stored(stock).nbytes
    return nbytes <= _MOST_NBYTES


def _stored(stock: ZarrArrayWrapper) -> Any:
    return stock.get_array()


def _whole(stock: ZarrArrayWrapper) -> Box:
    return tuple(slice(0, n) for n in stock.shape)


async def _read_all(arrays: Sequence[ArrayAhead]) -> None:
    slots = asyncio.Semaphore(requests_at_once())
    await asyncio.gather(*(_read(array, slots) for array in arrays))


async def _read(array: ArrayAhead, slots: asyncio.Semaphore) -> None:
    with suppress(Exception):  # likewise
        asynchronous = array.stored._async_array  # noqa: SLF001  # as xarray reads it
        async with slots:
            values = await asyncio.gather(*(asynchronous.getitem(box) for box in array.wanted))
        array.known = list(zip(array.wanted, values, strict=True))
