"""Device memory that a workspace owns: lent for one use after another, so no read waits for the pool, or for others.

A pool may take memory that another stream has just freed, and lets the new owner wait for that stream. So nothing is
given back to it while work is under way: the host knows when a use has ended, and lends the memory again.
"""

from __future__ import annotations

from collections.abc import Collection

from xarray_gpuzarr.cuda.api import DeviceApi, DeviceMemory, Stream

_ROUNDED_NBYTES = 16 * 1024**2
"""Memory from this length on is taken a little longer than asked for, so that it fits what the next use asks for."""


class WorkspaceMemory:
    """Device memory for one purpose.

    Parameters
    ----------
    api : DeviceApi
    quiet : Stream
        Runs nothing: memory that the device is done with is freed on it, so that whoever takes it waits for nothing.
    kept_nbytes : int
        Bytes that stay with the workspace when nothing is read.
    """

    def __init__(self, api: DeviceApi, quiet: Stream, kept_nbytes: int = 0) -> None:
        self._api = api
        self._quiet = quiet
        self._kept_nbytes = kept_nbytes
        self._lent: dict[int, DeviceMemory] = {}
        self._idle: list[DeviceMemory] = []

    def lend(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return memory for `stream`, to be given back by `give_back`.

        Raises
        ------
        DeviceMemoryError
            There is not so much left.
        """
        at = min((i for i, m in enumerate(self._idle) if m.nbytes >= nbytes), key=self._nbytes, default=None)
        if at is not None:
            memory = self._idle.pop(at)
        else:
            self.free_idle()  # all too short: outgrown
            memory = self._api.allocate(_rounded(max(1, nbytes)), stream)
        self._lent[memory.address] = memory
        return memory

    def give_back(self, memory: DeviceMemory) -> None:
        """Take memory back; only once the device has done everything with it."""
        self._idle.append(self._lent.pop(memory.address))

    def holds(self, memory: DeviceMemory) -> bool:
        """Say whether memory is lent from here."""
        return memory.address in self._lent

    def take_back_all(self, but: Collection[DeviceMemory] = ()) -> None:
        """Take everything back that is lent; only once the workspace's streams are idle."""
        kept = {memory.address for memory in but}
        for memory in [m for m in self._lent.values() if m.address not in kept]:
            self.give_back(memory)

    def free_idle(self, kept_nbytes: int = 0) -> None:
        """Free what is not lent but for so many bytes, the longest memory first."""
        idle, self._idle = sorted(self._idle, key=lambda m: m.nbytes), []
        for memory in idle:
            if memory.nbytes <= kept_nbytes:
                self._idle.append(memory)
                kept_nbytes -= memory.nbytes
            else:
                memory.free_behind(self._quiet)

    def end_read(self) -> None:
        """Free what is not to stay with the workspace."""
        self.free_idle(self._kept_nbytes)

    def _nbytes(self, number: int) -> int:
        return self._idle[number].nbytes


class ResultMemory:
    """Keeps a result's memory until nobody knows the result any more.

    It was taken on a stream of the workspace, for decoding to begin at once. Whoever uses the result does so on the
    consumer's stream, so it is given back behind what that stream has been given by then.
    """

    __slots__ = ("_consumer", "_memory")

    def __init__(self, memory: DeviceMemory, consumer: Stream) -> None:
        self._memory = memory
        self._consumer = consumer

    def __del__(self) -> None:
        self._memory.free_behind(self._consumer)


def most_taken(nbytes: int) -> int:
    """Return how much memory is taken at most for uses that need so many bytes together."""
    return nbytes if nbytes < _ROUNDED_NBYTES else nbytes + nbytes // 16


def _rounded(nbytes: int) -> int:
    """Round up to a sixteenth of the power of two below."""
    if nbytes < _ROUNDED_NBYTES:
        return nbytes
    step = 1 << (nbytes.bit_length() - 5)
    return -(-nbytes // step) * step
