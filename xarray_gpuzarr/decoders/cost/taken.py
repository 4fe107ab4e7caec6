"""What host and device have taken so far for chunks of one kind, and how many of the next ones go to the host. Pure.

Nothing is known at first. The device has all, until it has shown what it takes; then each thread of the host is given a
chunk, beside the device; from then on `model.best_split` shares chunks out by what both have taken. A host that is left
out is given a few chunks again now and then: it may have been busy with something else.
"""

from __future__ import annotations

from xarray_gpuzarr.decoders.cost.model import best_split, threads_each

FEW_NBYTES = 256 * 1024
"""Decoded bytes of short chunks that a thread takes at a time: handing them over one by one would cost as much."""
_N_CALLS = 2
"""Of the device, before it is known: whatever else was under way, it makes them longer, not shorter."""
_AGED = 0.985
"""What a call of the device counts for, compared with the next one."""
_N_WITHOUT = 32
"""Reads that the host may be left out of."""


class Taken:
    """What both sides have taken for chunks of one kind.

    Parameters
    ----------
    chunk_nbytes : int
        Decoded bytes of a chunk.
    """

    def __init__(self, chunk_nbytes: int) -> None:
        self._chunk_nbytes = chunk_nbytes
        self._host_s: float | None = None
        """Seconds of a thread for a chunk."""
        self._wave_s: float | None = None
        """Seconds of the device for as many chunks as it decodes at once."""
        self._busy_s, self._n_waves = 0.0, 0.0
        """Of its last calls, older ones counting less and less."""
        self._staging_s = 0.0
        """Seconds that the host is busy with a chunk for the device."""
        self._wave = 1
        self._n_calls = self._n_without = 0

    @property
    def is_known(self) -> bool:
        """Whether both sides have shown what they take."""
        return self._host_s is not None and self._n_calls >= _N_CALLS

    def by_device(self, seconds: float, n: int, wave: int) -> None:
        """Note a call that has kept a device busy that decodes so many chunks at once.

        Parameters
        ----------
        seconds : float
            In which no call before has kept it busy; not above 0 if it was always busy with others, too.
        n : int
            Chunks that were decoded.
        wave : int
        """
        n_waves = -(-n // wave)
        if self._n_calls < _N_CALLS:
            if seconds <= 0:
                return
            self._busy_s, self._n_waves = min(seconds / n_waves, self._wave_s or seconds), 1.0
        else:
            self._busy_s = _AGED * self._busy_s + max(0.0, seconds)
            self._n_waves = _AGED * self._n_waves + n_waves
        self._n_calls += 1
        self._wave, self._wave_s = wave, self._busy_s / self._n_waves

    def by_host(self, seconds: float, n: int, n_threads: int) -> None:
        """Note that threads have decoded so many chunks."""
        self._host_s = _mean(self._host_s, seconds / -(-n // n_threads))

    def by_staging(self, seconds: float, n: int) -> None:
        """Note that so many chunks were staged for the device."""
        self._staging_s = _mean(self._staging_s or None, seconds / n)

    def for_host(self, n: int, n_threads: int, n_reads: int = 1, backlog: int = 0) -> int:
        """Return how many of the next `n` chunks go to the host.

        Parameters
        ----------
        n : int
        n_threads : int
            Threads of the host that may decode.
        n_reads : int
            Reads under way, this one included.
        backlog : int
            Chunks that the device has been given and has not decoded.
        """
        if self._n_calls < _N_CALLS:
            return 0
        found = 0
        if self._host_s is not None:
            found = best_split(self, "", n, self._chunk_nbytes, n_threads, n_reads=n_reads, backlog=backlog).n_host
        self._n_without = 0 if found else self._n_without + 1
        if self._host_s is None or self._n_without == _N_WITHOUT:
            self._n_without = 0
            return min(n, threads_each(n_threads, n_reads) * max(1, FEW_NBYTES // self._chunk_nbytes))
        return found

    def device_seconds(self, _codec: str, n: int, _chunk_nbytes: int, n_reads: int = 1) -> float:
        """Return the time of the device for `n` chunks of each of so many reads at a time."""
        return -(-n * n_reads // self._wave) * (self._wave_s or 0.0)

    def staging_seconds(self, n: int) -> float:
        """Return how long the host is busy with `n` chunks for the device."""
        return n * self._staging_s

    def host_seconds(self, _codec: str, n: int, _chunk_nbytes: int, n_threads: int, n_reads: int = 1) -> float:
        """Return the time until `n` chunks, decoded by threads of the host, are on the device."""
        return -(-n // threads_each(n_threads, n_reads)) * (self._host_s or 0.0)


def _mean(before: float | None, now: float) -> float:
    """Return a mean in which what is older counts less and less."""
    return now if before is None else (now + 3 * before) / 4
