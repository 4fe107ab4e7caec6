"""What one device was found to do rightly: checks are run before what they stand for is first used, and remembered.

A check runs on a thread of its own, so that a device that never answers costs patience and no more. Called by the CUDA
decoder before each read; a read of what is known costs a few look-ups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from xarray_gpuzarr.advice import advise
from xarray_gpuzarr.cf import Cast
from xarray_gpuzarr.cuda.api import DeviceApi, DeviceIdentity
from xarray_gpuzarr.cuda.options import ResourceOptions
from xarray_gpuzarr.cuda.resources import Lane
from xarray_gpuzarr.decoders.cuda.checks import remembered
from xarray_gpuzarr.decoders.cuda.checks.basics import COPIES, COPY
from xarray_gpuzarr.decoders.cuda.checks.check import Check
from xarray_gpuzarr.decoders.cuda.checks.choice import checks_of, usual_checks
from xarray_gpuzarr.decoders.cuda.checks.trial import WrongAnswerError
from xarray_gpuzarr.errors import DeviceMemoryError, GpuZarrError
from xarray_gpuzarr.metadata import ArraySpec

PATIENCE_S = 60.0
"""From when on a check counts as one that never ends: kernels are built meanwhile, some seconds each."""
_LEAN = ResourceOptions(slot_nbytes=2**20, n_slots=2, scratch_nbytes=2**26)
_LESS_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one check."""

    name: str
    found: str
    """What is wrong; empty if it has passed."""
    seconds: float
    nbytes: int
    """Bytes that were compared."""
    lasts: bool = True
    """Whether it says something about the device, rather than about this moment: memory may not suffice now."""

    @property
    def passed(self) -> bool:
        """Whether the device gave the right answer."""
        return not self.found


class CheckedDevice:
    """A device, and what it was found to do rightly.

    Parameters
    ----------
    api : DeviceApi
    """

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}
        self._is_loaded = False

    def why_unusable(self) -> str | None:
        """Say why nothing can be read to this device; None if something can."""
        return self._first_failure((COPIES,))

    def why_not(self, spec: ArraySpec, cast: Cast, *, points: bool) -> str | None:
        """Say why the device is not to decode an array, though it should be able to; runs what nobody has run yet."""
        return self._first_failure(checks_of(spec, cast, points=points))

    def known_failure(self, spec: ArraySpec, cast: Cast) -> str | None:
        """Say why the device is not to decode boxes of an array, as far as it is known; runs nothing."""
        identity = self.api.identity
        if identity is None:
            return None
        known = self._found or remembered.load(identity)
        return _failure(checks_of(spec, cast, points=False), known, identity)

    def _first_failure(self, checks: Sequence[Check]) -> str | None:
        identity = self.api.identity
        if identity is None:
            return None
        found = self._found
        if any(check.name not in found for check in checks):
            with self._lock:
                self._find_out(checks, identity)
        why = _failure(checks, found, identity)
        if why is None:
            return None
        advise(
            f"self-check: {why}",
            "the GPU has failed a self-check; what needs it is decoded on the host",
            found=why,
            do="run gpuzarr doctor, which checks again, and report what gpuzarr doctor --report prints",
        )
        return why

    def _find_out(self, checks: Sequence[Check], identity: DeviceIdentity) -> None:
        """Run what is not known yet, up to the first failure; does nothing if a failure is known."""
        found = self._found
        if not self._is_loaded:
            found.update(remembered.load(identity))
            self._is_loaded = True
        todo = [check for check in checks if check.name not in found]
        if not todo or any(found.get(check.name) for check in checks):
            return
        answers = list(run_checks(self.api, todo, until_failure=True))
        found.update((answer.name, answer.found) for answer in answers)
        remembered.save(identity, {answer.name: answer.found for answer in answers if answer.lasts})
        if not answers[-1].passed and found[COPY] == "":  # does the device still do anything?
            found.update((answer.name, answer.found) for answer in run_checks(self.api, [COPIES]))


def remembered_failure(spec: ArraySpec, cast: Cast) -> str | None:
    """Say which check of an array has failed on a GPU of this machine when it was last used; starts no CUDA."""
    for identity, found in remembered.of_this_package():
        failure = _failure(checks_of(spec, cast, points=False), found, identity)
        if failure is not None:
            return failure
    return None


def _failure(checks: Sequence[Check], found: Mapping[str, str], identity: DeviceIdentity) -> str | None:
    """Say which of the checks is the first to have failed; None if none has, as far as it is known."""
    failed = next((check.name for check in checks if found.get(check.name)), None)
    if failed is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in identity.versions.items())
    return f"{failed} failed its self-check on {identity.name}, driver {identity.driver}, {versions}: {found[failed]}"


def check_all(api: DeviceApi) -> Iterator[Answer]:
    """Run all usual checks anew, one after another, and remember what they find.

    Parameters
    ----------
    api : DeviceApi
        One with an identity.
    """
    assert api.identity is not None
    for answer in run_checks(api, tuple({check.name: check for check in usual_checks()}.values())):
        if answer.lasts:
            remembered.save(api.identity, {answer.name: answer.found})
        yield answer


def run_checks(api: DeviceApi, checks: Sequence[Check], *, until_failure: bool = False) -> Iterator[Answer]:
    """Run checks and yield their answers as they come.

    Parameters
    ----------
    api : DeviceApi
    checks : sequence of Check
    until_failure : bool
        Whether those behind one that fails are left out.

    Notes
    -----
    A check that does not end is given up, and what it holds is left to its thread for good. Those behind it may not end
    either, and are given less time.
    """
    left, patience_s = list(checks), PATIENCE_S
    while left:
        answers: SimpleQueue[Answer] = SimpleQueue()
        run = partial(_run, api, list(left), answers, until_failure=until_failure)
        threading.Thread(target=run, daemon=True, name="self-check").start()
        has_failed = False
        while left and not (until_failure and has_failed):
            check = left.pop(0)
            try:
                answer = answers.get(timeout=patience_s)
            except Empty:
                found = f"no end after {patience_s:g} s"
                yield Answer(name=check.name, found=found, seconds=patience_s, nbytes=0)
                patience_s = min(patience_s, _LESS_PATIENCE_S)
                has_failed = True
                break
            yield answer
            has_failed = not answer.passed
        if until_failure and has_failed:
            return


def _run(api: DeviceApi, checks: Sequence[Check], answers: SimpleQueue[Answer], *, until_failure: bool) -> None:
    """Run checks one after another on streams and memory of their own."""
    with api.activate(), suppress(Exception), ExitStack() as stack:
        lane: Lane | None = None

        def run(check: Check) -> int:
            nonlocal lane
            if lane is None:
                lane = Lane(api, _LEAN)
                stack.callback(lane.close)
            return check.run(lane)

        for check in checks:
            answer = _answer(check, run)
            answers.put(answer)
            if until_failure and not answer.passed:
                return


def _answer(check: Check, run: Callable[[Check], int]) -> Answer:
    """Run a check; once more if memory does not suffice, which may be another's."""
    start, nbytes, lasts = time.perf_counter(), 0, True
    try:
        try:
            nbytes = run(check)
        except DeviceMemoryError:
            nbytes = run(check)
        found = ""
    except DeviceMemoryError as error:
        found, lasts = f"DeviceMemoryError: {error.found}", False
    except WrongAnswerError as error:
        found = str(error)
    except Exception as error:  # noqa: BLE001  # whatever a device may do, what needs this goes to the host
        found = f"{type(error).__name__}: {error.found if isinstance(error, GpuZarrError) else error}"
    return Answer(name=check.name, found=found, seconds=time.perf_counter() - start, nbytes=nbytes, lasts=lasts)
