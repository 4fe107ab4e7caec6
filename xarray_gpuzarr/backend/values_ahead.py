"""Values that xarray looks at while it opens, fetched together: indexes, and the first and last of other times.

xarray reads one index after another, and of each time the first value, then the last. `ValuesAhead` knows the arrays of
all groups that are opened: when it needs the first value, those of all arrays are read at once. zarr-python reads each
of them as ever. What fails is read again when xarray asks for it, so that errors are those of xarray's own engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from time import monotonic
from typing import Any, Self

import numpy as np
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing
from zarr import config

from xarray_gpuzarr.fetch import Reply, UnderWay, begin_on_loop, requests_at_once

_MOST_NBYTES = 4 * 1024**2
"""Decoded bytes."""
_SECONDS, _LOCAL_SECONDS = 30.0, 2.0
"""Time from which on stored values may have changed, and are read anew; the other in stores that answer at once."""

type Box = tuple[slice, ...]
type _Request = Callable[[], Coroutine[Any, Any, None]]


class ValuesAhead:
    """The arrays of one opening whose values have not been read.

    Parameters
    ----------
    is_slow : bool
        Whether the store takes long to answer.
    """

    def __init__(self, *, is_slow: bool) -> None:
        self._is_slow = is_slow
        self._seconds = _SECONDS if is_slow else _LOCAL_SECONDS
        self._waiting: list[ArrayAhead] = []
        self._times: list[ArrayAhead] = []
        self._under_way = UnderWay()
        self._slots = asyncio.Semaphore(requests_at_once())
        self.is_decoded = False
        """Whether xarray has looked at all times; what is left is to read indexes."""
        self._until = monotonic() + self._seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._under_way.give_up()

    def index(self, stock: ZarrArrayWrapper) -> ZarrArrayWrapper:
        """Return an array of which all values are wanted."""
        return self._await(stock, [_whole(stock)])

    def ends(self, stock: ZarrArrayWrapper) -> ZarrArrayWrapper:
        """Return an array of which the first and the last value are wanted, until all groups are decoded."""
        if is_short(stock) and _stored(stock).nchunks == 1:
            array = self._await(stock, [_whole(stock)])
        else:
            array = self._await(stock, [(slice(0, 1),) * stock.ndim, tuple(slice(n - 1, n) for n in stock.shape)])
        self._times.append(array)
        return array

    def end_decoding(self) -> None:
        """Keep nothing but indexes."""
        self.is_decoded = True
        for array in self._times:
            array.forget()
        self._times.clear()
        self._waiting = [array for array in self._waiting if array.is_ahead]

    def begin(self, *, is_tree: bool) -> None:
        """Ask a slow store for what is wanted so far, if there are times, or other groups are still to be prepared."""
        if self._is_slow and (self._times or is_tree):
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
        if not waiting:
            return
        requests: list[_Request] = [partial(_read, each, self._slots) for each in waiting]
        if not self._is_slow:  # all answers are there before a thread would have been woken for the first
            requests = [lambda: _read_all(waiting, self._slots)]
        replies = begin_on_loop(str(waiting[0].stored.store), self._under_way, requests)
        for array, reply in zip(waiting, cycle(replies)):  # there are as many, or one for all
            array.reply = reply
        self._until = monotonic() + self._seconds

    def is_over(self) -> bool:
        """Return whether values were read, or would have been, long ago."""
        return monotonic() > self._until

    def _await(self, stock: ZarrArrayWrapper, wanted: Sequence[Box]) -> ArrayAhead:
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

    __slots__ = ("_ahead", "known", "reply", "stored", "wanted")

    def __init__(self, zarr_array: Any, wanted: Sequence[Box], ahead: ValuesAhead) -> None:
        super().__init__(zarr_array)  # type: ignore[no-untyped-call]
        self.stored = zarr_array
        self.wanted = wanted
        self.known: list[tuple[Box, Any]] = []
        self.reply: Reply[None] | None = None
        self._ahead: ValuesAhead | None = ahead

    @property
    def is_ahead(self) -> bool:
        """Whether anything is still to be read, or given away, ahead."""
        return self._ahead is not None

    def __reduce__(self) -> tuple[Callable[..., ZarrArrayWrapper], tuple[Any]]:
        return ZarrArrayWrapper, (self.stored,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        ahead = self._ahead
        if ahead is not None and ahead.is_over():
            self.forget()
        elif ahead is not None:
            ahead.fetch(self)
            known = self._known_values(key)
            if known is not None:
                if ahead.is_decoded and known.shape == self.shape:
                    self.forget()  # an index has all its values now
                return known
        return super().__getitem__(key)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Read from the store from now on."""
        self._ahead, self.known, self.reply = None, [], None

    def _known_values(self, key: indexing.ExplicitIndexer) -> Any:
        """Return the values that a selection selects if they are known, else None."""
        box = None if isinstance(key, indexing.VectorizedIndexer) else _box(key.tuple, self.shape)
        if box is None:
            return None
        for has, values in self.known:
            inside = [(b.start - h.start, b.stop - h.start) for h, b in zip(has, box, strict=True)]
            if all(first >= 0 and end <= h.stop - h.start for h, (first, end) in zip(has, inside, strict=True)):
                parts = zip(key.tuple, inside, strict=True)
                found = values[tuple(slice(*ends) if isinstance(part, slice) else ends[0] for part, ends in parts)]
                return found if found.shape == values.shape else found.copy()
        return None


def _box(key: Sequence[Any], shape: Sequence[int]) -> Box | None:
    """Return the box that is selected by slices with steps of 1, and numbers beside them; None of all other keys."""
    box = []
    for part, n in zip(key, shape, strict=True):
        if isinstance(part, slice):
            chosen = range(n)[part]
        elif isinstance(part, int | np.integer):
            chosen = range(int(part), int(part) + 1)
        else:
            return None
        if not chosen or chosen.step != 1:
            return None
        box.append(slice(chosen.start, chosen.stop))
    has_axes = not shape or any(isinstance(part, slice) for part in key)  # zarr-python has its own kinds of scalars
    return tuple(box) if has_axes else None


def is_short(stock: ZarrArrayWrapper) -> bool:
    """Return whether an index is read ahead: a longer one takes long, and not all that is opened gets indexes."""
    nbytes: int = _stored(stock).nbytes
    return nbytes <= _MOST_NBYTES


def _stored(stock: ZarrArrayWrapper) -> Any:
    return stock.get_array()


def _whole(stock: ZarrArrayWrapper) -> Box:
    return tuple(slice(0, n) for n in stock.shape)


async def _read_all(arrays: Sequence[ArrayAhead], slots: asyncio.Semaphore) -> None:
    await asyncio.gather(*(_read(array, slots) for array in arrays))


async def _read(array: ArrayAhead, slots: asyncio.Semaphore) -> None:
    with suppress(Exception):  # likewise
        asynchronous = array.stored._async_array  # noqa: SLF001  # as xarray reads it
        async with slots:
            values = await asyncio.gather(*(asynchronous.getitem(box) for box in array.wanted))
        if array.is_ahead:
            known = zip(array.wanted, values, strict=True)
            array.known = [(box, v) for box, v in known if isinstance(v, np.ndarray | np.number)]
