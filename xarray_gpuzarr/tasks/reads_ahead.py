"""Requests for what dask's local schedulers will read next.

dask tells callbacks which tasks of a computation are ready, in the order in which it will start them. Tasks that read
an array depend on its `AheadReader`, and their keys end in block numbers. A key may differ from the block that its task
reads by a constant offset, such as after a selection. `ArrayReads` learns this offset from the first reads: it compares
the block that is read with the keys of the running tasks. If a read fits no offset, the array is not read ahead any
more. Nothing is kept longer than the computation; see `fetch.ahead`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any

from dask.callbacks import Callback

from xarray_gpuzarr.fetch.ahead import RequestsAhead, read_with
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, BlockIndex, Box
from xarray_gpuzarr.tasks.one_output import WholeArray
from xarray_gpuzarr.tasks.slots import read_without_slot

_MIN_READS = 2
"""Number of reads after which the offset is trusted."""
_MAX_READY = 256
"""Largest number of ready tasks that are considered at each read, so that a long list of them takes little time."""


class ArrayReads:
    """The reads of one array in one computation. Safe to use from several threads.

    Parameters
    ----------
    reader : AheadReader
        The array.
    ahead : RequestsAhead
        The array's requests ahead, which end with the computation.
    keys : set
        Keys of the tasks that read the array.
    state : mapping
        The state of dask's scheduler.
    """

    def __init__(self, reader: AheadReader, ahead: RequestsAhead, keys: set[Any], state: Mapping[str, Any]) -> None:
        self._reader = reader
        self._ahead = ahead
        self._keys = keys
        self._state = state
        self._lock = threading.Lock()
        self._offsets: set[BlockIndex] | None = None
        """Possible differences between a task's block and the numbers in its key; None before the first read."""
        self._n_reads = 0
        self._requested: set[BlockIndex] = set()
        """Blocks that were read or requested ahead."""

    def begin(self, box: Box) -> RequestsAhead | None:
        """Record that a read begins, and request what the next ones need.

        Parameters
        ----------
        box : tuple
            What the task reads.

        Returns
        -------
        RequestsAhead or None
            Requests that the read may take. None if `box` is not a whole block, or no task of this computation reads
            it, such as for a computation inside a task.
        """
        block = self._reader.block_of(box)
        if block is None:
            return None
        with self._lock:
            self._learn_offset(block)
            self._requested.add(block)
            if self._n_reads >= _MIN_READS:
                self._request_next()
        return self._ahead if self._offsets else None

    def _learn_offset(self, block: BlockIndex) -> None:
        """Keep the offsets that turn the key of a running task into the block that is read."""
        running = list(self._state["running"])  # one step, since the scheduler's thread changes it
        keys = [key[1:] for key in running if key in self._keys and len(key) == 1 + len(block)]
        offsets = {tuple(coord - number for coord, number in zip(block, key, strict=True)) for key in keys}
        self._offsets = offsets if self._offsets is None else self._offsets & offsets
        self._n_reads += 1
        if not self._offsets:
            self.end()

    def _request_next(self) -> None:
        """Request the objects of the next blocks, until the budget is used up."""
        for block in self._next_blocks():
            if block in self._requested:
                continue
            box = self._reader.box_of(block)
            if box is None:
                continue
            if not self._ahead.start(self._reader.first_requests(box)):
                return
            self._requested.add(block)

    def _next_blocks(self) -> Iterator[BlockIndex]:
        """Yield the blocks of ready tasks, the next one first.

        If several offsets are possible, the usual one, zero along all axes, is taken. If it is not among them, nothing
        is yielded.
        """
        offsets = self._offsets or set()
        zero_offset = {offset for offset in offsets if not any(offset)}
        candidates = zero_offset or offsets
        if len(candidates) != 1:
            return
        (offset,) = candidates
        ready = self._state["ready"][-_MAX_READY:]  # one step, since the scheduler's thread changes it
        for key in reversed(ready):  # dask takes tasks from the end of the list
            if key in self._keys and len(key) == 1 + len(offset):
                yield tuple(number + shift for number, shift in zip(key[1:], offset, strict=True))

    def end(self) -> None:
        """Make no more requests, and drop those that no read has taken."""
        self._ahead.end()


Computation = Mapping[int, ArrayReads]
"""The reads of each array of a computation, by the id of its reader, which the computation keeps alive."""

_current: ContextVar[Computation | None] = ContextVar("gpuzarr_computation", default=None)
"""The computation that this thread runs. Worker threads inherit it with each task if they are dask's own, of a version
since 2026 (dask#12224)."""


class _Watcher(Callback):
    """Callback of dask that is called when a computation of a local scheduler begins and ends."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens: list[tuple[Any, Computation, Token[Computation | None]]] = []
        """For each computation under way: the id of its graph, its reads, and the token that resets `_current`."""

    def _start_state(self, dsk: Any, state: Mapping[str, Any]) -> None:
        computation = _find_reads(state) if fetch_options().ahead_nbytes else {}
        if computation:
            self._tokens.append((id(dsk), computation, _current.set(computation)))

    def _finish(self, dsk: Any, _state: Any, _failed: Any) -> None:
        entries = list(self._tokens)  # one step, since computations on other threads change it
        for entry in [entry for entry in entries if entry[0] == id(dsk)]:
            self._tokens.remove(entry)
            _, computation, token = entry
            _current.reset(token)
            for reads in computation.values():
                reads.end()

    def find_computation(self, reader: AheadReader) -> Computation | None:
        """Return the computation under way that reads an array; None if there is none, or more than one."""
        computations = [entry[1] for entry in list(self._tokens) if id(reader) in entry[1]]
        return computations[0] if len(computations) == 1 else None


def _find_reads(state: Mapping[str, Any]) -> Computation:
    """Return the reads of the arrays whose readers are among the constants of a computation."""
    computation = {}
    for key, value in state["cache"].items():
        reader = value.reader if isinstance(value, WholeArray) else value
        if not isinstance(reader, AheadReader):
            continue
        ahead = reader.requests_ahead()
        if ahead is not None:
            keys = {task for task in state["dependents"][key] if isinstance(task, tuple)}
            computation[id(reader)] = ArrayReads(reader, ahead, keys, state)
    return computation


_watcher = _Watcher()


def watch_computations() -> None:
    """Read ahead for all computations of dask's local schedulers that begin from now on."""
    _watcher.register()


def read_ahead[Result](reader: AheadReader, box: Box, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, and request what comes next meanwhile.

    In a computation of a local scheduler, these are the objects of the next reads. On a worker of a cluster, they are
    those of this read: other tasks use its slot while it waits.

    Parameters
    ----------
    reader : AheadReader
        The array.
    box : tuple
        What `read` reads of it.
    read : callable
        Reads the box.
    """
    computation = _current.get() or _watcher.find_computation(reader)
    if computation is None:
        return read_without_slot(reader, box, read)
    reads = computation.get(id(reader))
    return read() if reads is None else read_with(reads.begin(box), read)
