"""Objects and shard indexes that are requested before the read that needs them, within a budget of the process.

`tasks` knows which reads come next, and requests their objects through `RequestsAhead`. A read inside `read_with` takes
the answers: `Snapshot` treats them like answers to its own requests, so index and chunks are of one version. A
`RequestsAhead` belongs to one computation and ends with it, so that no read gets bytes that were requested before its
computation began.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xarray_gpuzarr.fetch.source import Edge, ObjectSource, PendingEdge
from xarray_gpuzarr.fetch.whole_shard import max_whole_nbytes, uncompressed_shard_nbytes
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Budget:
    """Bytes that this process has requested ahead and no read has taken. Safe to use from several threads."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all requests. Called in a forked process, where the lock may be held forever."""
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Count `nbytes` more bytes if there is room for them; return whether there is."""
        with self._lock:
            if self.nbytes + nbytes > fetch_options().ahead_nbytes:
                return False
            self.nbytes += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Count `nbytes` fewer bytes."""
        with self._lock:
            self.nbytes -= nbytes


budget = Budget()
"""The budget of this process."""

os.register_at_fork(after_in_child=budget.restart)


class ObjectRequest(NamedTuple):
    """A request with which a read begins."""

    key: str
    """Key of the object."""
    is_whole: bool
    """Whether it is for the whole object; if not, for the index of a shard."""


class RequestAhead:
    """A request that was made ahead, and its answer once there is one."""

    def __init__(self, request: ObjectRequest, pending: PendingEdge, nbytes: int) -> None:
        self.is_whole = request.is_whole
        """Whether the whole object is requested; if not, the index of a shard."""
        self._pending: PendingEdge | None = pending
        self._edge: Edge | None = None
        self._error: Exception | None = None
        self.nbytes = nbytes
        """Bytes of the budget that it takes."""

    @property
    def was_awaited(self) -> bool:
        """Whether `wait` has returned."""
        return self._pending is None

    def wait(self) -> None:
        """Wait for the answer, and count the seconds. An error is kept until `answer` raises it.

        Only one thread may wait: the one whose read takes the request, or, before that, the task that made it.
        """
        if self._pending is None:
            return
        with counters.stage("fetch" if self.is_whole else "index"):
            try:
                self._edge = self._pending()
            except Exception as error:  # noqa: BLE001  # a store may raise anything; `answer` raises it
                self._error = error
        self._pending = None

    def answer(self) -> Edge | None:
        """Wait for the answer and return it; None if there is no such object. Raises what the store raised.

        The read that has taken the request calls this once.
        """
        self.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # otherwise a reference cycle keeps alive what the frames refer to
        return self._edge


class RequestsAhead:
    """Requests for objects of one array, made ahead of its reads. Safe to use from several threads.

    Parameters
    ----------
    source : ObjectSource
        The array's source, which must be remote.
    spec : ArraySpec
        The array.
    """

    def __init__(self, source: ObjectSource, spec: ArraySpec) -> None:
        self._array_source = source
        """The array's own source. `_source` is a copy of it for these requests."""
        if spec.index is None:
            self.most_nbytes = spec.max_encoded_nbytes
            """Length in bytes above which an object need not come whole: the answer may have its length only."""
            self._initial_nbytes = spec.expected_nbytes
            """Length in bytes with which an object counts in the budget until one has arrived."""
        else:
            self.most_nbytes = max_whole_nbytes(spec, spec.index)
            self._initial_nbytes = uncompressed_shard_nbytes(spec, spec.index)
        self._index_spec = spec.index
        self._source = source.for_one_read(expected_nbytes=self._initial_nbytes, most_nbytes=self.most_nbytes)
        self._lock = threading.Lock()
        self._waiting: dict[str, RequestAhead] = {}
        """By key, the requests that no read has taken."""
        self._taken: weakref.WeakSet[RequestAhead] = weakref.WeakSet()
        """Requests that reads have taken and still refer to. A read may be waiting for one of them."""
        self._longest_nbytes = 0
        """Length in bytes of the longest object that has arrived; 0 before the first one."""
        self._has_ended = False

    def belongs_to(self, source: ObjectSource) -> bool:
        """Whether the requests are for the array that has this source."""
        return self._array_source is source

    def start(self, requests: Sequence[ObjectRequest]) -> bool:
        """Start requests, except for those that wait to be taken already.

        In the budget, an object counts with the length of the longest that has arrived; before the first one, with
        about its length without compression.

        Returns
        -------
        bool
            Whether the requests were started. False if the budget has no room for all of them, or after `end`; then
            none is started.

        Raises
        ------
        StoreReadError
            If no requests can be sent from here, such as in a forked process.
        """
        with self._lock:
            new_requests = [request for request in requests if request.key not in self._waiting]
            lengths = {request: self._expected_nbytes(request) for request in new_requests}
            unstarted_nbytes = sum(lengths.values())
            if self._has_ended or not budget.take(unstarted_nbytes):
                return False
            try:
                for request, nbytes in lengths.items():
                    self._waiting[request.key] = RequestAhead(request, self._start_one(request), nbytes)
                    unstarted_nbytes -= nbytes
            except BaseException:
                budget.give_back(unstarted_nbytes)
                raise
        return True

    def _expected_nbytes(self, request: ObjectRequest) -> int:
        """Return the number of bytes with which a request counts in the budget."""
        if request.is_whole:
            return self._longest_nbytes or self._initial_nbytes
        assert self._index_spec is not None
        return self._index_spec.nbytes

    def _start_one(self, request: ObjectRequest) -> PendingEdge:
        if request.is_whole:
            return self._source.start_whole(request.key, self.most_nbytes)
        assert self._index_spec is not None
        return self._source.start_edge(request.key, self._index_spec.location, self._index_spec.nbytes)

    def take(self, key: str) -> RequestAhead | None:
        """Return the request for an object, and forget it, so that no other read gets it; None if there is none."""
        with self._lock:
            taken = self._waiting.pop(key, None)
            if taken is not None:
                self._taken.add(taken)
        if taken is not None:
            budget.give_back(taken.nbytes)
        return taken

    def record_length(self, nbytes: int) -> None:
        """Record the length of an object that has arrived."""
        self._longest_nbytes = max(self._longest_nbytes, nbytes)

    def wait(self) -> None:
        """Wait for the answers to all requests that no read has taken. No read may take one meanwhile."""
        with self._lock:
            waiting = list(self._waiting.values())
        for request in waiting:
            request.wait()

    def end(self) -> None:
        """Start no more requests, and drop those that no read has taken.

        Unanswered requests are cancelled, all together. If a read has taken one of them and may be waiting for it, none
        is cancelled: all go on until they are answered, or until another call of `end` cancels them.
        """
        with self._lock:
            self._has_ended = True
            untaken = list(self._waiting.values())
            self._waiting.clear()
            may_be_awaited = not all(request.was_awaited for request in self._taken)
        if not may_be_awaited:
            self._source.give_up()
        budget.give_back(sum(request.nbytes for request in untaken))


class _ThreadState(threading.local):
    ahead: RequestsAhead | None = None


_thread_state = _ThreadState()


def read_with[Result](ahead: RequestsAhead | None, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, whose snapshots on this thread take the requests of `ahead`, if there are any."""
    previous = _thread_state.ahead
    try:
        _thread_state.ahead = ahead
        return read()
    finally:
        _thread_state.ahead = previous


def requests_for(source: ObjectSource) -> RequestsAhead | None:
    """Return the requests ahead that this thread's read may take, if they are for the array that has this source."""
    ahead = _thread_state.ahead
    return ahead if ahead is not None and ahead.belongs_to(source) else None
