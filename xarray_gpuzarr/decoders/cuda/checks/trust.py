"""Which self-checks a device has passed; a device that decoded a chunk to other bytes than the host is not used again.

Checks are run before what they stand for is first used, and remembered. Asked by the CUDA decoder before each read; a
read of what is known costs a few look-ups.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from xarray_gpuzarr.cuda.api import DeviceApi, DeviceIdentity
from xarray_gpuzarr.decoders.cuda.checks import remembered
from xarray_gpuzarr.decoders.cuda.checks.checked import CheckResult, checks_of, run_checks
from xarray_gpuzarr.decoders.cuda.checks.placing import COPIES, COPY
from xarray_gpuzarr.decoders.cuda.checks.trial import Check
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.plan.targets import PointTarget, Target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import Checks
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


class CheckedDevice:
    """A device, and what it was found to do rightly."""

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self._lock = threading.Lock()
        self._outcomes: dict[str, str] = {}
        self._is_loaded = False

    def why_unusable(self) -> str | None:
        """Say why nothing can be read to this device; None if something can."""
        return self._first_failure((COPIES,))[0]

    def why_not(self, spec: ArraySpec, cast: Cast, *, points: bool) -> str | None:
        """Say why the device is not to decode an array, though it should be able to; runs what nobody has run yet."""
        why, moment = self._first_failure(checks_of(spec, cast, points=points))
        if why is not None or moment is None:
            return why
        advise(
            f"memory for the self-check of {moment.name}",
            f"there is no memory to check {moment.name}; what needs it is decoded on the host until there is",
            found=moment.found,
            do="free memory of the GPU, or of the host if that is what is missing; nothing if this goes away",
        )
        return moment.found

    def known_failure(self, spec: ArraySpec, cast: Cast) -> str | None:
        """Say why the device is not to decode boxes of an array, as far as it is known; runs nothing."""
        identity = self.api.identity
        if identity is None:
            return None
        known = self._outcomes or remembered.load(identity)
        return _failure(checks_of(spec, cast, points=False), known, identity)

    def _first_failure(self, checks: Sequence[Check]) -> tuple[str | None, CheckResult | None]:
        """Say what has failed, or is not known because of this moment."""
        identity = self.api.identity
        if identity is None:
            return None, None
        outcomes, moment = self._outcomes, None
        if any(check.name not in outcomes for check in checks):
            with self._lock:
                moment = self._find_out(checks, identity)
        why = _failure(checks, outcomes, identity)
        if why is not None:
            advise(
                f"self-check: {why}",
                "the GPU has failed a self-check; what needs it is decoded on the host",
                found=why,
                do="run gpuzarr doctor, which checks again, and report what gpuzarr doctor --report prints",
            )
        return why, moment

    def _find_out(self, checks: Sequence[Check], identity: DeviceIdentity) -> CheckResult | None:
        """Run what is not known yet, up to the first failure, unless one is known; return one of this moment only."""
        outcomes = self._outcomes
        if not self._is_loaded:
            outcomes.update(remembered.load(identity))
            self._is_loaded = True
        todo = [check for check in checks if check.name not in outcomes]
        if not todo or any(outcomes.get(check.name) for check in checks):
            return None
        answers = list(run_checks(self.api, todo, until_failure=True))
        lasting = {answer.name: answer.dated for answer in answers if answer.about == "device"}
        failed = answers[-1] if not answers[-1].passed else None
        outcomes.update((answer.name, "") for answer in answers if answer.passed)
        if failed is not None and failed.about != "moment":
            outcomes[failed.name] = failed.dated
            copies = next(run_checks(self.api, [COPIES])) if failed.name != COPY else None
            if copies is not None and not copies.passed:
                # The context is broken, perhaps by others, and nothing was learnt but that, for this process.
                lasting.pop(failed.name, None)
                if copies.about != "moment":
                    outcomes[COPY] = copies.found
        remembered.save(identity, lasting)
        return failed if failed is not None and failed.about == "moment" else None


def _failure(checks: Sequence[Check], outcomes: Mapping[str, str], identity: DeviceIdentity) -> str | None:
    """Say which of the checks is the first to have failed; None if none has, as far as it is known."""
    failed = next((check.name for check in checks if outcomes.get(check.name)), None)
    if failed is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in identity.versions.items())
    return (
        f"{failed} failed its self-check on {identity.name}, driver {identity.driver}, {versions}: {outcomes[failed]}"
    )


class Trust:
    """Findings about each device that this process has used. Safe to ask from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked: dict[int, CheckedDevice] = {}
        self._distrusted: dict[ArraySpec, str] = {}
        """Arrays that the host decodes, and why."""

    def of(self, device: DeviceApi) -> CheckedDevice:
        """Return what is known of a device."""
        with self._lock:
            checked = self._checked.get(device.index)
            if checked is None or checked.api is not device:
                checked = self._checked[device.index] = CheckedDevice(device)
            return checked

    def fails(self, device: DeviceApi, spec: ArraySpec, target: Target, cast: Cast, checks: Checks) -> bool:
        """Say whether a device is not to be trusted with a read; checks what the read rests on, if nobody has yet."""
        if spec in self._distrusted:
            return True
        if checks == "off":
            return False
        why = self.of(device).why_not(spec, cast, points=isinstance(target, PointTarget))
        if why is not None and checks == "strict":
            raise CudaError(
                f"the GPU is not trusted with array '{spec.path}'",
                tried="the self-checks that the read rests on, with checks='strict'",
                found=why,
                do="run gpuzarr doctor, which checks again; checks='warn' lets the host decode",
            )
        return why is not None

    def known_failure(self, device: DeviceApi | None, spec: ArraySpec, cast: Cast) -> str | None:
        """Say which check that reads of an array rest on has failed, or which chunk of it; checks nothing.

        Without a device, by what was found on the GPUs of this machine when they were last used; that starts no CUDA.
        """
        if spec in self._distrusted:
            return self._distrusted[spec]
        if device is not None:
            return self.of(device).known_failure(spec, cast)
        for identity, outcomes in remembered.of_this_package():
            if failure := _failure(checks_of(spec, cast, points=False), outcomes, identity):
                return failure
        return None

    def distrust(self, device: DeviceApi, error: DifferentValuesError) -> None:
        """Let the host decode an array from now on, and say so."""
        identity = device.identity
        on = "the GPU" if identity is None else f"{identity.name}, driver {identity.driver}"
        self._distrusted[error.spec] = f"{on} has decoded a chunk to other bytes than the host"
        advise(
            f"other bytes of {error.spec}",
            f"array '{error.spec.path}' is decoded on the host from now on; what was read of it is right",
            found=f"{error.headline} ({on})",
            do=error.do,
        )
