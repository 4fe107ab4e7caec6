"""Values that xarray looks at while it opens a slow store, fetched together: indexes, first and last of other times.

xarray reads one index after another, and of each time the first value, then the last. `ValuesAhead` knows the arrays of
all groups that are opened: when it needs the first value, those of all arrays are asked of zarr-python at once. Arrays
of many chunks are read when xarray asks for them; so is what fails, so that it raises the errors of any other read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import FrameType
from typing import Any, Self

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing
from zarr import Array, config

from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.fetch import Reply, UnderWay, begin_on_loop, requests_at_once

_MOST_NBYTES = 4 * 1024**2
"""Decoded bytes of an index that is read ahead: a longer one takes long, and not all that is opened gets indexes."""
_MOST_CHUNKS = 256
"""Of an array that is asked of zarr-python: more take several round trips anyway, and it needs 0.4 ms for each."""
_OPENERS = {opener.__code__ for opener in (xr.open_dataset, xr.open_datatree, xr.open_groups)}

type Below = LazyArray | ZarrArrayWrapper
type Box = tuple[slice, ...]


class ValuesAhead:
    """The arrays of one opening whose values have not been read."""

    def __init__(self) -> None:
        self._waiting: list[ArrayAhead] = []
        self._times: list[ArrayAhead] = []
        self._under_way = UnderWay()
        self._slots = asyncio.Semaphore(requests_at_once())
        self.is_decoded = False
        """Whether xarray has looked at all times; what is left is to read indexes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._under_way.give_up()

    def index(self, array: Below, stored: Array[Any]) -> ArrayAhead:
        """Return an array of which all values are wanted."""
        ahead = ArrayAhead(array, stored, [_whole(stored)], self)
        if stored.nchunks <= _MOST_CHUNKS:
            self._waiting.append(ahead)
        return ahead

    def ends(self, array: Below, stored: Array[Any]) -> ArrayAhead:
        """Return an array of which the first and the last value are wanted, until all groups are decoded."""
        ends = [(slice(0, 1),) * stored.ndim, tuple(slice(n - 1, n) for n in stored.shape)]
        ahead = ArrayAhead(array, stored, [_whole(stored)] if is_short(stored) and stored.nchunks == 1 else ends, self)
        self._times.append(ahead)
        self._waiting.append(ahead)
        return ahead

    def end_decoding(self) -> None:
        """Keep nothing but indexes."""
        self.is_decoded = True
        for array in self._times:
            array.forget()
        self._times.clear()
        self._waiting = [array for array in self._waiting if array.is_ahead]

    def begin(self, *, is_tree: bool) -> None:
        """Ask for what is wanted so far, if there are times, or other groups are still to be prepared."""
        if self._times or is_tree:
            with suppress(Exception):  # likewise, see `fetch`
                self._ask()

    def fetch(self, array: ArrayAhead) -> None:
        """Ask for what is wanted of all arrays that wait, and wait for the answer of one of them."""
        try:
            with suppress(Exception):  # of any kind: it comes again when xarray reads the array
                self._ask()
                if array.reply is not None:
                    array.reply.result(config.get("async.timeout", None))
        except BaseException:
            self._under_way.give_up()
            raise

    def _ask(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            requests = [partial(each.ask, self._slots) for each in waiting]
            replies = begin_on_loop(str(waiting[0].stored.store), self._under_way, requests)
            for array, reply in zip(waiting, replies, strict=True):
                array.reply = reply


class ArrayAhead(BackendArray):
    """A stored array, parts of which are read together with those of others while a store is opened.

    Parameters
    ----------
    array : LazyArray or ZarrArrayWrapper
        What reads the rest, and everything later.
    stored : zarr.Array
    wanted : sequence of tuple of slice
        Boxes that xarray will ask for, with steps of 1.
    ahead : ValuesAhead
    """

    __slots__ = ("_ahead", "array", "dtype", "known", "reply", "shape", "stored", "wanted")

    def __init__(self, array: Below, stored: Array[Any], wanted: Sequence[Box], ahead: ValuesAhead) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.stored = stored
        self.wanted = wanted
        self.known: list[tuple[Box, Any]] = []
        self.reply: Reply[None] | None = None
        self._ahead: ValuesAhead | None = ahead

    @property
    def is_ahead(self) -> bool:
        """Whether anything is still to be read, or given away, ahead."""
        return self._ahead is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.array,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        ahead = self._ahead
        if ahead is None or not _is_opening():
            self.forget()
            return self.array[key]
        ahead.fetch(self)
        if not self.known and self.ndim and len(self.wanted) == 1:
            with suppress(Exception):  # likewise
                self.known = [(self.wanted[0], self.array[indexing.BasicIndexer(self.wanted[0])])]
        known = self._known_values(key.tuple)
        if known is None:
            return self.array[key]
        if ahead.is_decoded and known.shape == self.shape:
            self.forget()  # an index has all its values now
        return known

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read from the store."""
        return await self.array.async_getitem(key)

    def forget(self) -> None:
        """Read from the store from now on."""
        self._ahead, self.known, self.reply = None, [], None

    async def ask(self, slots: asyncio.Semaphore) -> None:
        """Let zarr-python read what is wanted, on its event loop."""
        with suppress(Exception):  # likewise
            asynchronous = self.stored._async_array  # noqa: SLF001  # as xarray reads it
            async with slots:
                values = await asyncio.gather(*(asynchronous.getitem(box) for box in self.wanted))
            if self.is_ahead:
                known = zip(self.wanted, values, strict=True)
                self.known = [(box, v) for box, v in known if isinstance(v, np.ndarray | np.number)]

    def _known_values(self, key: Sequence[Any]) -> Any:
        """Return the values that a key selects if they are known, else None."""
        for box, values in self.known:
            part = _part(box, key, self.shape)
            if part is not None:
                found = values[part]
                return found if found.shape == values.shape else found.copy()
        return None


def _part(box: Box, key: Sequence[Any], shape: Sequence[int]) -> tuple[slice | int, ...] | None:
    """Return what selects in a box what a key of numbers and slices selects in an array; None if the box lacks some."""
    part: list[slice | int] = []
    for within, along, n in zip(box, key, shape, strict=True):
        if not isinstance(along, slice | int | np.integer):
            return None
        chosen = range(n)[along] if isinstance(along, slice) else range(int(along), int(along) + 1)
        if not chosen or chosen.step != 1 or chosen.start < within.start or chosen.stop > within.stop:
            return None
        first = chosen.start - within.start
        part.append(slice(first, first + len(chosen)) if isinstance(along, slice) else first)
    has_axes = not shape or any(isinstance(along, slice) for along in key)  # zarr-python has its own kinds of scalars
    return tuple(part) if has_axes else None


def is_short(stored: Array[Any]) -> bool:
    """Return whether an index is read ahead."""
    return stored.nbytes <= _MOST_NBYTES


def _whole(stored: Array[Any]) -> Box:
    return tuple(slice(0, n) for n in stored.shape)


def _is_opening() -> bool:
    """Return whether xarray opens something on this thread: what is read then was read ahead for it."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code not in _OPENERS:
        frame = frame.f_back
    return frame is not None
