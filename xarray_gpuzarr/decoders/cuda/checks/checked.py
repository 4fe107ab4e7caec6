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
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal

from xarray_gpuzarr.cuda.api import DeviceApi, DeviceIdentity
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.checks import remembered
from xarray_gpuzarr.decoders.cuda.checks.basics import COPIES, COPY
from xarray_gpuzarr.decoders.cuda.checks.check import Check
from xarray_gpuzarr.decoders.cuda.checks.choice import checks_of, usual_checks
from xarray_gpuzarr.decoders.cuda.checks.trial import WrongAnswerError
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.ending import start_thread
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

PATIENCE_S = 120.0
"""From when on a check counts as one that never ends: kernels are built meanwhile, some seconds each, and longer where
many processes begin at once."""
_LESS_PATIENCE_S = 5.0
_TICK_S = 0.25
"""Patience is counted in ticks, so that a process that was stopped for hours has lost one of them."""
_LEAN = ResourceOptions(slot_nbytes=2**18, n_slots=2, scratch_nbytes=2**26)

About = Literal["device", "process", "moment"]
"""What a failure says something about: the device, for good; this process, whose context may be broken; or only this
moment, in which memory does not suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one check."""

    name: str
    found: str
    """What is wrong; empty if it has passed."""
    seconds: float
    nbytes: int
    """Bytes that were compared."""
    about: About = "device"

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
        why, _ = self._first_failure((COPIES,))
        return why

    def why_not(self, spec: ArraySpec, cast: Cast, *, points: bool) -> str | None:
        """Say why the device is not to decode an array, though it should be able to; runs what nobody has run yet."""
        why, moment = self._first_failure(checks_of(spec, cast, points=points))
        if why is None and moment is not None:
            _advise_of_memory(moment)
            return moment.found
        return why

    def known_failure(self, spec: ArraySpec, cast: Cast) -> str | None:
        """Say why the device is not to decode boxes of an array, as far as it is known; runs nothing."""
        identity = self.api.identity
        if identity is None:
            return None
        known = self._found or remembered.load(identity)
        return _failure(checks_of(spec, cast, points=False), known, identity)

    def _first_failure(self, checks: Sequence[Check]) -> tuple[str | None, Answer | None]:
        """Say what has failed, or is not known because of this moment."""
        identity = self.api.identity
        if identity is None:
            return None, None
        found, moment = self._found, None
        if any(check.name not in found for check in checks):
            with self._lock:
                moment = self._find_out(checks, identity)
        why = _failure(checks, found, identity)
        if why is not None:
            _advise(why)
        return why, moment

    def _find_out(self, checks: Sequence[Check], identity: DeviceIdentity) -> Answer | None:
        """Run what is not known yet, up to the first failure, unless one is known; return one of this moment only."""
        found = self._found
        if not self._is_loaded:
            found.update(remembered.load(identity))
            self._is_loaded = True
        todo = [check for check in checks if check.name not in found]
        if not todo or any(found.get(check.name) for check in checks):
            return None
        answers = list(run_checks(self.api, todo, until_failure=True))
        lasting = {answer.name: _dated(answer) for answer in answers if answer.about == "device"}
        failed = answers[-1] if not answers[-1].passed else None
        found.update((answer.name, "") for answer in answers if answer.passed)
        if failed is not None and failed.about != "moment":
            found[failed.name] = _dated(failed)
            if not self._still_copies(failed):  # then the context is broken, perhaps by others, and nothing was learnt
                lasting.pop(failed.name, None)
        remembered.save(identity, lasting)
        return failed if failed is not None and failed.about == "moment" else None

    def _still_copies(self, failed: Answer) -> bool:
        """Say whether the device can be used behind a check that has failed; if not, note it down for this process."""
        if failed.name == COPY:
            return True
        (answer,) = run_checks(self.api, [COPIES])
        if not answer.passed and answer.about != "moment":
            self._found[COPY] = answer.found
        return answer.passed


def _advise(why: str) -> None:
    advise(
        f"self-check: {why}",
        "the GPU has failed a self-check; what needs it is decoded on the host",
        found=why,
        do="run gpuzarr doctor, which checks again, and report what gpuzarr doctor --report prints",
    )


def _advise_of_memory(answer: Answer) -> None:
    advise(
        f"memory for the self-check of {answer.name}",
        f"there is no memory to check {answer.name}; what needs it is decoded on the host until there is",
        found=answer.found,
        do="free memory of the GPU, or of the host if that is what is missing; nothing if this goes away",
    )


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
    """Run all usual checks anew, one after another, and remember what they find, and nothing from before.

    Parameters
    ----------
    api : DeviceApi
        One with an identity.
    """
    assert api.identity is not None
    remembered.forget(api.identity)
    for answer in run_checks(api, tuple({check.name: check for check in usual_checks()}.values())):
        if answer.about == "device":
            remembered.save(api.identity, {answer.name: _dated(answer)})
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
        try:
            start_thread(run, "self-check")
        except RuntimeError as error:  # the system has no more threads
            yield Answer(name=left[0].name, found=str(error), seconds=0.0, nbytes=0, about="moment")
            return
        while left:
            check = left.pop(0)
            answer = _within(answers, patience_s)
            if answer is None:
                found = f"no end after {patience_s:g} s"
                yield Answer(name=check.name, found=found, seconds=patience_s, nbytes=0, about=_about(check))
                patience_s = min(patience_s, _LESS_PATIENCE_S)
                break
            yield answer
            if until_failure and not answer.passed:
                return
        if until_failure:
            return


def _within(answers: SimpleQueue[Answer], seconds: float) -> Answer | None:
    """Return the next answer; None if there is none for so many seconds in which this process runs."""
    for _ in range(round(seconds / _TICK_S)):
        with suppress(Empty):
            return answers.get(timeout=_TICK_S)
    return None


def _run(api: DeviceApi, checks: Sequence[Check], answers: SimpleQueue[Answer], *, until_failure: bool) -> None:
    """Run checks one after another on streams and memory of their own."""
    with suppress(Exception), ExitStack() as stack:
        workspace: Workspace | None = None

        def run(check: Check) -> int:
            nonlocal workspace
            if workspace is None:
                stack.enter_context(api.activate())
                workspace = Workspace(api, _LEAN, keeps_results=True)
                stack.callback(workspace.close)
            return check.run(workspace)

        for check in checks:
            answer = _answer(check, run)
            answers.put(answer)
            if until_failure and not answer.passed:
                return


def _answer(check: Check, run: Callable[[Check], int]) -> Answer:
    """Run a check; once more if memory does not suffice, which may be another's."""
    start, nbytes, found = time.perf_counter(), 0, ""
    about: About = "device"
    try:
        try:
            nbytes = run(check)
        except MemoryError:
            nbytes = run(check)
    except WrongAnswerError as error:
        found = str(error)
    except MemoryError as error:  # of the device or of the host
        found, about = _said(error), "moment"
    except Exception as error:  # noqa: BLE001  # whatever may go wrong, what needs this goes to the host
        found, about = _said(error), "process"
    return Answer(name=check.name, found=found, seconds=time.perf_counter() - start, nbytes=nbytes, about=about)


def _dated(answer: Answer) -> str:
    """Return what is kept of an answer: what was wrong, and when."""
    return answer.found and f"{answer.found}, on {datetime.now(UTC):%Y-%m-%d}"


def _about(check: Check) -> About:
    """Say what an error of CUDA, or no end, is about: where not even copies can be made, the context may be broken."""
    return "process" if check.name == COPY else "device"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error.found if isinstance(error, GpuZarrError) else error}"
