"""What calls that decode have shown of a device: how many chunks it decodes at once, and whether calls overlap.

Only reads that have the device to themselves teach anything. What they teach is kept for the process; `gpuzarr doctor
--calibrate` keeps it for the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Self
from weakref import WeakKeyDictionary

from xarray_gpuzarr.cuda.api import DeviceApi, Event, Stream
from xarray_gpuzarr.cuda.joint_calls import Part, Timed
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cost.calibration import calibration_in_force
from xarray_gpuzarr.decoders.cost.model import Calibration
from xarray_gpuzarr.decoders.cost.taken import Taken
from xarray_gpuzarr.decoders.cuda.batches.sizes import N_AT_ONCE, SHORTEST

_AS_LONG = 1.5
"""A call with so many times as many chunks, or more, that takes less than so many times as long has not filled the
device before."""
_N_TRIES = 3
"""Reads that are asked whether calls overlap; if none can tell, they are taken to run in turn."""


class Learnt:
    """What is known of one device.

    Parameters
    ----------
    wave : int
        Chunks that it is assumed to decode at once.
    """

    def __init__(self, wave: int = N_AT_ONCE) -> None:
        self.wave = wave
        """Chunks that it decodes at once, as far as is known."""
        self.is_wave_full = False
        """Whether twice as many are known to take longer."""
        self.overlaps: bool | None = None
        """Whether calls on several streams are decoded together, rather than in turn; None: not known."""
        self._n_tries = 0
        self.last_done: Event | None = None
        """Where the device had decoded all calls of which the time was noted, of all reads."""
        self.taken: dict[tuple[str | None, int, bool], Taken] = {}
        """By codec and length of chunks, and whether reads are little: what these have taken."""

    @classmethod
    def as_measured(cls, calibration: Calibration | None) -> Self:
        """Begin with what a calibration says."""
        wave, overlaps = (None, None) if calibration is None else (calibration.wave, calibration.overlaps)
        learnt = cls(wave or N_AT_ONCE)
        learnt.is_wave_full, learnt.overlaps = wave is not None, overlaps
        return learnt

    def learn(self, calls: Sequence[Timed]) -> None:
        """Learn from the calls of a read that had the device to itself, in the order in which they were given."""
        if [call.n for call in calls[:2]] == [SHORTEST, SHORTEST]:
            self.compare(*calls[:2])
        own: dict[int, float] = {}
        for before, call in pairwise(calls):
            seconds = call.end_s - max(call.begin_s, before.end_s)
            own[call.n] = min(seconds, own.get(call.n, seconds))
        self.see_waves(own)

    def compare(self, first: Timed, second: Timed) -> None:
        """Learn whether calls overlap; see `Knowledge.compare`."""
        if self.overlaps is None:
            self._n_tries += 1
            self.overlaps = _overlap(first, second)
            if self.overlaps is None and self._n_tries == _N_TRIES:
                self.overlaps = False

    def see_waves(self, seconds: Mapping[int, float]) -> None:
        """Learn how many streams are decoded at once; see `Knowledge.see_waves`."""
        n_once = max((n for n in seconds if n <= self.wave), default=0)
        n_more = max((n for n in seconds if _AS_LONG * self.wave <= n <= 2 * self.wave), default=0)
        once, more = seconds.get(n_once, 0.0), seconds.get(n_more, 0.0)
        if once > 0 and more > 0 and not self.is_wave_full:
            if more < _AS_LONG * once:
                self.wave *= 2
            else:
                self.is_wave_full = True


def _overlap(first: Timed, second: Timed) -> bool | None:
    """Say whether two short calls with as many chunks were decoded together; None if they do not show it.

    In turn, the second ends a whole call after the first; together, only as much later as it has begun later.
    """
    seconds = first.end_s - first.begin_s
    if second.begin_s - first.begin_s > seconds / 4:
        return None
    return second.end_s - first.end_s < seconds / 2


class Lesson:
    """Watches the calls of one read.

    Parameters
    ----------
    api : DeviceApi
    batch_chunks : int or None
        Chunks that batches are asked to have; None: what has been learnt.
    n_reading : callable
        Returns how many reads are under way on the device, this one included.
    taken : Taken, optional
        Is told what calls have taken.
    """

    def __init__(
        self, api: DeviceApi, batch_chunks: int | None, *, n_reading: Callable[[], int], taken: Taken | None = None
    ) -> None:
        self._api = api
        self._n_reading = n_reading
        self.learnt = learnt_of(api) if batch_chunks is None else Learnt(batch_chunks)
        self._first: Event | None = None
        self._calls: list[Timed] = []
        self._taken = taken
        self._done: Event | None = None
        """Where all calls of this read were done of which the time was noted."""
        self.n_chunks = 1
        """Of the longest call that the read may have."""
        self._is_told = batch_chunks is not None
        is_known = self.learnt.is_wave_full and self.learnt.overlaps is not None
        self.is_on = not self._is_told and not is_known and n_reading() == 1
        """Whether anything can be learnt."""

    @property
    def _is_timed(self) -> bool:
        return self.is_on or self._taken is not None

    def event(self) -> Event:
        """Return an event, with timing if that is needed."""
        return self._api.event(timed=self._is_timed)

    def staged[Result](self, n_chunks: int, stage: Callable[[], Result]) -> Result:
        """Return what `stage` does, and note how long the host is busy with so many chunks."""
        begun_s = perf_counter()
        result = stage()
        if self._taken is not None:
            self._taken.by_staging(perf_counter() - begun_s, n_chunks)
        return result

    def begin(self, stream: Stream) -> Event | None:
        """Note that a call begins here, if anything can be learnt."""
        if not self._is_timed:
            return None
        begun = self.event()
        self._api.record(begun, stream)
        self._first = self._first or begun
        return begun

    def note(self, n_chunks: int, n_streams: int, begun: Event | None, done: Event) -> None:
        """Note a call that has ended, and what it was given."""
        if begun is None or self._first is None:
            return
        self.is_on = self.is_on and self._n_reading() == 1
        if self._taken is not None:
            self._note_busy(self._taken, n_chunks, begun, done)
        self.is_on = self.is_on and n_streams == n_chunks  # others do not show how many are decoded at once
        if self.is_on:
            begin_s, end_s = (self._api.elapsed_s(self._first, event) for event in (begun, done))
            self._calls.append(Timed(n=n_chunks, begin_s=begin_s, end_s=end_s))

    def _note_busy(self, taken: Taken, n_chunks: int, begun: Event, done: Event) -> None:
        """Note how long a call has kept the device busy that no call before had.

        Where calls of several reads fill the device together, these are calls of any read; else they do not wait for
        each other, and only calls of the same read are looked at.
        """
        is_filled = n_chunks * self._n_reading() > self.learnt.wave
        before = (self.learnt.last_done if is_filled else self._done) or begun
        # Not by a difference: times are float32, and after a day those since `before` are rounded to 8 ms.
        start = begun if self._api.elapsed_s(before, begun) > 0 else before
        seconds = self._api.elapsed_s(start, done)
        if 2 * n_chunks >= self.n_chunks:  # shorter ones are hidden behind others
            taken.by_device(seconds, n_chunks, self.learnt.wave)
        self._done, self.learnt.last_done = self._later(self._done, done), self._later(self.learnt.last_done, done)

    def _later(self, before: Event | None, done: Event) -> Event:
        return done if before is None or self._api.elapsed_s(before, done) > 0 else before

    def expect(self, workspace: Workspace) -> None:
        """Let batches of other reads wait a little for those of this one, if they may be decoded together."""
        if workspace.calls is not None and not self._is_told and not self.learnt.overlaps:
            workspace.calls.staging[workspace] = None

    def joins(self, workspace: Workspace) -> Learnt | None:
        """Return what is known of the device, if a batch is decoded together with those of other reads; else None."""
        calls = workspace.calls
        if calls is None:
            return None
        if self._is_told or self.learnt.overlaps or self._n_reading() < 2:
            calls.apart[workspace] = None
            return None
        return self.learnt

    def note_joint(self, n_chunks: int, n_streams: int, joint: Sequence[tuple[object, Part]]) -> None:
        """Note the calls that have decoded a batch together with those of other reads."""
        self.is_on = False
        if self._taken is not None:
            for call in {call for _, part in joint for call, *_ in part.given}:
                self._taken.by_device(call.seconds, max(1, call.n * n_chunks // n_streams), self.learnt.wave)

    def end(self) -> None:
        """Learn from the read, if nothing has disturbed it."""
        if self.is_on and self._calls:
            self.learnt.learn(self._calls)
        self.is_on = False


_of_devices: WeakKeyDictionary[DeviceApi, Learnt] = WeakKeyDictionary()


def learnt_of(api: DeviceApi) -> Learnt:
    """Return what is known of a device; of one that no read has taught anything yet, what a calibration says."""
    found = _of_devices.get(api)
    if found is None:
        found = _of_devices.setdefault(api, Learnt.as_measured(calibration_in_force(lambda: api.identity)))
    return found
