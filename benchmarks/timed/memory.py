"""How many bytes of the modelled device's memory are taken: freed ones are, too, until their stream has passed there.

A stream may have what was freed on it anew at once; other streams only once that is so. Blocks are not modelled.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

from benchmarks.timed.simulation import Operation, Simulation, Stream


class DeviceBytes:
    """Counts bytes; they have no addresses. Safe to use from several threads."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._lock = threading.Lock()
        self._freed: dict[int, deque[tuple[Operation | None, int]]] = {}
        """By stream, oldest first: bytes that were freed after an operation, whether taken anew or not."""
        self._reusable: Counter[int] = Counter()
        """By stream: of these, bytes that were not taken anew."""
        self.nbytes = 0
        """Taken now."""
        self.peak_nbytes = 0

    def take(self, nbytes: int, stream: Stream) -> None:
        """Count bytes that a stream is given."""
        with self._lock:
            self._settle()
            reused = min(nbytes, self._reusable[stream.handle])
            self._reusable[stream.handle] -= reused
            self.nbytes += nbytes - reused
            self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def free(self, nbytes: int, stream: Stream) -> None:
        """Count bytes that are given back in the order of a stream."""
        with self._lock:
            self._freed.setdefault(stream.handle, deque()).append((stream.last, nbytes))
            self._reusable[stream.handle] += nbytes

    def restart(self) -> None:
        """Forget what the peak was."""
        with self._lock:
            self._settle()
            self.peak_nbytes = self.nbytes

    def _settle(self) -> None:
        """Let go of what streams have passed by now."""
        now = self._simulation.catch_up()
        for handle, freed in self._freed.items():
            while freed and ((last := freed[0][0]) is None or last.has_ended(now)):
                _, nbytes = freed.popleft()
                given = min(nbytes, self._reusable[handle])
                self._reusable[handle] -= given
                self.nbytes -= given
