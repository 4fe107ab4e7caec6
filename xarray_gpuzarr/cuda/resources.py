"""`DeviceResources`: the workspaces of this process on one device, each lent to one read at a time.

At most `ResourceOptions.n_reads` reads run at once, on whatever threads, and others wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.locks import SharedLock
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.cuda.workspace_memory import Shortage
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions

_PATIENCE_SECONDS = (0.1, 0.4, 1.5)
"""Seconds to wait after each failed try to read alone, before the next one; see `DeviceResources.run_alone`."""


class DeviceResources:
    """All workspaces of this process on one device. Safe to use from several threads."""

    def __init__(self, api: DeviceApi, options: ResourceOptions) -> None:
        self.api = api
        self.options = options
        self.reads_lock = SharedLock(options.n_reads)
        """Lets up to `n_reads` threads read at once, or one thread alone."""
        self._shortage = Shortage()
        self._workspaces: list[Workspace] = []
        """All workspaces, the oldest first."""
        self._in_use: dict[int, Workspace] = {}
        """Workspaces of reads that are under way, by the id of the reading thread."""
        self._threads: set[int] = set()
        """Ids of all threads that have ever read."""
        self._workspaces_lock = threading.Lock()
        """Held while `_workspaces` or `_threads` changes, or an idle workspace is chosen."""

    def run_read[Result](self, read: Callable[[Workspace], Result]) -> Result:
        """Return what `read` returns for a workspace of its own; waits as `SharedLock.shared` does.

        A read inside a read has the workspace of the outer one.
        """
        thread = threading.get_ident()
        outer = self._in_use.get(thread)
        if outer is not None:
            return read(outer)
        with self.api.activate():
            return self.reads_lock.shared(self._run_with_own_workspace, thread, read)

    def run_alone[Result](self, read: Callable[[], Result]) -> Result:
        """Wait until the reads of other threads have ended, free idle memory, and return what `read` returns.

        If memory is still short, and several threads have read to this device, the last two steps are repeated after
        pauses: results of other threads may hold the memory, and may be dropped a moment later.
        """

        def read_after_trim() -> Result:
            with self.api.activate():
                self.trim()
            return read()

        def read_patiently() -> Result:
            if self.is_shared:
                for seconds in _PATIENCE_SECONDS:
                    with suppress(DeviceMemoryError):
                        return read_after_trim()
                    time.sleep(seconds)
            return read_after_trim()

        return self.reads_lock.exclusive(read_patiently)

    def _run_with_own_workspace[Result](self, thread: int, read: Callable[[Workspace], Result]) -> Result:
        """Return what `read` returns for an idle workspace, or a new one if all are in use."""
        try:
            with self._workspaces_lock:
                idle = self._idle_workspaces()
                if not idle:
                    idle = [Workspace(self.api, self.options, shortage=self._shortage)]
                    self._workspaces += idle
                self._threads.add(thread)
                workspace = idle[0]  # the oldest, whose slots have grown most
                self._in_use[thread] = workspace
            return workspace.run(read)
        finally:
            # This takes no lock: a KeyboardInterrupt that arrives while a thread waits for one would leave the
            # workspace in use for ever. One `pop` cannot be interrupted, and `_idle_workspaces` iterates over a copy.
            self._in_use.pop(thread, None)

    def _idle_workspaces(self) -> list[Workspace]:
        """Return the workspaces that no read uses, the oldest first."""
        in_use = list(self._in_use.values())
        return [workspace for workspace in self._workspaces if workspace not in in_use]

    @property
    def is_in_read(self) -> bool:
        """Whether the calling thread is inside a read, or reads alone, so that it must not call `close`."""
        return threading.get_ident() in self._in_use or self.reads_lock.is_alone

    @property
    def is_shared(self) -> bool:
        """Whether more than one thread has ever read to this device."""
        return len(self._threads) > 1

    def prepare(self, n_threads: int) -> None:
        """Make the streams and allocate the pinned memory that the reads of `n_threads` more threads use.

        No more than `ResourceOptions.n_reads` workspaces are made, because no more reads run at once.
        """
        with self._workspaces_lock:
            n_new = min(n_threads, self.options.n_reads - len(self._workspaces))
            self._workspaces += [Workspace(self.api, self.options, shortage=self._shortage) for _ in range(n_new)]
            for workspace in self._idle_workspaces():
                workspace.prepare()

    def trim(self) -> None:
        """Free unused memory in the pools of array libraries, and that of idle workspaces. No other thread may read."""
        self.api.trim()
        with self._workspaces_lock:
            for workspace in self._idle_workspaces():
                workspace.trim()

    def close(self) -> None:
        """Close all workspaces, after the reads that are under way have ended.

        Afterwards their streams are idle and their memory is free, so that the caller may destroy the pool.
        """

        def close() -> None:
            while self._workspaces:
                # An interrupted call leaves the workspace in the list, for the next call.
                self._workspaces[-1].close()
                self._workspaces.pop()

        self.reads_lock.exclusive(close)
