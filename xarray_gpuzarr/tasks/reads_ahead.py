"""What dask's local schedulers will read next, so that it can be asked for ahead.

dask tells callbacks which tasks of a computation are ready, in the order in which it will start them. Tasks that read
an array depend on its `AheadReader`, and their keys end in numbers of blocks. Which block a task reads is learned from
the first ones: the difference between the block that was read and the key of a task that is running. A block that fits
no such difference ends the guessing. Nothing is kept longer than the computation, see `fetch.ahead`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any

from dask.callbacks import Callback

from xarray_gpuzarr.fetch.ahead import ObjectsAhead, using
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, Block, Box
from xarray_gpuzarr.tasks.one_output import Whole
from xarray_gpuzarr.tasks.slots import read_beside_others

_LEAST_READS = 2
"""Reads from which the blocks of a computation are known well enough."""
_LOOKED_AT = 256
"""Tasks that are looked at, of those that are ready: more objects than are ever under way."""


class ReadsOfArray:
    """The reads of one array in one computation."""

    def __init__(self, reader: AheadReader, objects: ObjectsAhead, keys: set[Any], state: Mapping[str, Any]) -> None:
        self._reader, self._objects, self._keys, self._state = reader, objects, keys, state
        self._lock = threading.Lock()
        self._shifts: set[Block] | None = None
        """What may have to be added to the key of a task to get its block; None before the first read."""
        self._n_reads = 0
        self._asked: set[Block] = set()

    def begin(self, box: Box) -> ObjectsAhead | None:
        """Hear of a read that begins; ask for those that come next. Return what was asked for, if it may be taken.

        It may not by a read that is none of this computation, such as one of a computation inside a task: it does not
        fit what is running.
        """
        block = self._reader.block_of(box)
        if block is None:
            return None
        with self._lock:
            self._learn(block)
            self._asked.add(block)
            if self._n_reads >= _LEAST_READS:
                self._ask_ahead(block)
        return self._objects if self._shifts else None

    def _learn(self, block: Block) -> None:
        running = list(self._state["running"])  # one step, while the scheduler's thread changes it
        keys = [key[1:] for key in running if key in self._keys and len(key) == 1 + len(block)]
        shifts = {tuple(at - number for at, number in zip(block, key, strict=True)) for key in keys}
        self._shifts = shifts if self._shifts is None else self._shifts & shifts
        self._n_reads += 1
        if not self._shifts:
            self.end()

    def _ask_ahead(self, block: Block) -> None:
        for coming in self._coming((0,) * len(block)):
            box = None if coming in self._asked else self._reader.box_of(coming)
            if box is None:
                continue
            if not self._objects.ask(self._reader.first_requests(box)):
                return
            self._asked.add(coming)

    def _coming(self, no_shift: Block) -> Iterator[Block]:
        """Return the blocks of tasks that are ready, the next one first; none unless it is known which they are."""
        shifts = self._shifts or set()
        if no_shift not in shifts and len(shifts) != 1:
            return
        shift = no_shift if no_shift in shifts else next(iter(shifts))
        ready = self._state["ready"][-_LOOKED_AT:]  # one step as well
        for key in reversed(ready):
            if key in self._keys and len(key) == 1 + len(shift):
                yield tuple(number + more for number, more in zip(key[1:], shift, strict=True))

    def end(self) -> None:
        """Ask for nothing any more, and let go of what nobody has taken."""
        self._objects.end()


Computation = Mapping[int, ReadsOfArray]
"""The reads of each array, by the id of its reader, which the computation keeps alive."""

_current: ContextVar[Computation | None] = ContextVar("gpuzarr_computation", default=None)
"""Set by the thread that runs a computation; dask's own threads inherit it with each task."""


class _Watcher(Callback):
    """Hears of all computations of dask's local schedulers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens: list[tuple[Any, Computation, Token[Computation | None]]] = []

    def _start_state(self, dsk: Any, state: Mapping[str, Any]) -> None:
        computation = _reads_of(state) if fetch_options().ahead_nbytes else {}
        if computation:
            self._tokens.append((id(dsk), computation, _current.set(computation)))

    def _finish(self, dsk: Any, _state: Any, _failed: Any) -> None:
        for entry in [entry for entry in list(self._tokens) if entry[0] == id(dsk)]:
            self._tokens.remove(entry)
            _, computation, token = entry
            _current.reset(token)
            for reads in computation.values():
                reads.end()


def _reads_of(state: Mapping[str, Any]) -> Computation:
    """Return the reads of the arrays that a computation has among its constants."""
    computation = {}
    for key, value in state["cache"].items():
        reader = value.reader if isinstance(value, Whole) else value
        objects = reader.objects_ahead() if isinstance(reader, AheadReader) else None
        if isinstance(reader, AheadReader) and objects is not None:
            keys = {task for task in state["dependents"][key] if isinstance(task, tuple)}
            computation[id(reader)] = ReadsOfArray(reader, objects, keys, state)
    return computation


_watcher = _Watcher()


def watch() -> None:
    """Hear of the computations that begin from now on."""
    _watcher.register()


def read_ahead[Result](reader: AheadReader, box: Box, read: Callable[[], Result]) -> Result:
    """Return what `read` reads, a box of an array; what comes next, or the box itself, is asked for ahead.

    In a computation of a local scheduler, what it reads next is asked for meanwhile. On a worker of a cluster, the
    task gives its slot away while it waits.
    """
    computation = _current.get()
    if computation is None:
        return read_beside_others(reader, box, read)
    reads = computation.get(id(reader))
    return read() if reads is None else using(reads.begin(box), read)
