"""Whether a device can be trusted with a read: the self-checks that the read depends on, and comparisons with the host.

The CUDA decoder asks before each read. Checks run before the read that first depends on them, and their outcomes are
kept, so that later reads cost a few look-ups. If the device and the host decode a chunk to different bytes, the host
decodes the chunk's array from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from xarray_gpuzarr.cuda.api import DeviceApi, DeviceIdentity
from xarray_gpuzarr.decoders.cuda.checks import outcome_cache
from xarray_gpuzarr.decoders.cuda.checks.placing import COPIES, COPIES_NAME
from xarray_gpuzarr.decoders.cuda.checks.self_checks import CheckResult, required_checks, run_checks
from xarray_gpuzarr.decoders.cuda.checks.trial import Check
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.plan.targets import PointTarget, Target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import Checks
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


class CheckedDevice:
    """A device, and the outcomes of its self-checks as far as they are known."""

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self._lock = threading.Lock()
        self._outcomes: dict[str, str] = {}
        """Finding of each check, by its name; empty if it has passed."""
        self._is_loaded = False
        """Whether `_outcomes` includes those that were stored."""

    def why_unusable(self) -> str | None:
        """Return why nothing can be read to this device; None if it can be used.

        Runs the check of copies unless it has an outcome. A lack of memory for this check is no reason.
        """
        failure, _ = self._first_failure((COPIES,))
        return failure

    def why_not(self, spec: ArraySpec, cast: Cast, *, points: bool) -> str | None:
        """Return, in words, which check keeps the device from decoding an array; None if all pass.

        Runs the checks that have no outcome yet. A check that lacks memory keeps the device from this read only, with a
        warning. Parameters are those of `required_checks`.
        """
        failure, unfinished = self._first_failure(required_checks(spec, cast, points=points))
        if failure is not None or unfinished is None:
            return failure
        advise(
            f"memory for the self-check of {unfinished.name}",
            f"there is no memory to check {unfinished.name}; what needs it is decoded on the host until there is",
            found=unfinished.found,
            do="free memory of the GPU, or of the host if that is what is missing; nothing if this goes away",
        )
        return unfinished.found

    def known_failure(self, spec: ArraySpec, cast: Cast) -> str | None:
        """Return, in words, which check keeps the device from decoding boxes of an array; None if none is known to.

        Runs no check.
        """
        identity = self.api.identity
        if identity is None:
            return None
        outcomes = self._outcomes or outcome_cache.load(identity)
        return _describe_failure(required_checks(spec, cast, points=False), outcomes, identity)

    def _first_failure(self, checks: Sequence[Check]) -> tuple[str | None, CheckResult | None]:
        """Return the first failure, in words, and the result of a check that could not run for lack of memory.

        Either may be None. Runs the checks that have no outcome yet.
        """
        identity = self.api.identity
        if identity is None:
            return None, None
        outcomes = self._outcomes
        unfinished = None
        if any(check.name not in outcomes for check in checks):
            with self._lock:
                unfinished = self._run_missing(checks, identity)
        failure = _describe_failure(checks, outcomes, identity)
        if failure is not None:
            advise(
                f"self-check: {failure}",
                "the GPU has failed a self-check; what needs it is decoded on the host",
                found=failure,
                do="run gpuzarr doctor, which checks again, and report what gpuzarr doctor --report prints",
            )
        return failure, unfinished

    def _run_missing(self, checks: Sequence[Check], identity: DeviceIdentity) -> CheckResult | None:
        """Run the checks without an outcome, up to the first failure, and store their outcomes.

        Runs none if one of `checks` is known to fail. Returns the result of a check that lacked memory; None if none
        did.
        """
        outcomes = self._outcomes
        if not self._is_loaded:
            outcomes.update(outcome_cache.load(identity))
            self._is_loaded = True
        missing = [check for check in checks if check.name not in outcomes]
        if not missing or any(outcomes.get(check.name) for check in checks):
            return None
        results = list(run_checks(self.api, missing, until_failure=True))
        # Only outcomes that hold for the device are stored. This process also remembers failures of its own context.
        device_outcomes = {result.name: result.dated_finding for result in results if result.scope == "device"}
        outcomes.update((result.name, "") for result in results if result.passed)
        last = results[-1]  # the only one that can have failed: no check runs after a failure
        if not last.passed and last.scope != "moment":
            outcomes[last.name] = last.dated_finding
            if last.name != COPIES_NAME and not self._recheck_copies():
                # Copies, which had passed, no longer do: the context may be broken, rather than the device.
                device_outcomes.pop(last.name, None)
        outcome_cache.save(identity, device_outcomes)
        return last if not last.passed and last.scope == "moment" else None

    def _recheck_copies(self) -> bool:
        """Run the check of copies once more, and return whether it passes.

        It fails if the context is broken, perhaps by other code in this process. The failure is then an outcome for
        this process, which no longer uses the device.
        """
        copies = next(run_checks(self.api, [COPIES]))
        if not copies.passed and copies.scope != "moment":
            self._outcomes[COPIES_NAME] = copies.found
        return copies.passed


def _describe_failure(checks: Sequence[Check], outcomes: Mapping[str, str], identity: DeviceIdentity) -> str | None:
    """Return, in words, which of `checks` is the first one that has failed; None if none is known to have failed."""
    failed = next((check.name for check in checks if outcomes.get(check.name)), None)
    if failed is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in identity.versions.items())
    return (
        f"{failed} failed its self-check on {identity.name}, driver {identity.driver}, {versions}: {outcomes[failed]}"
    )


class Trust:
    """Outcomes of the checks of all devices that this process has used, and arrays that devices have decoded wrongly.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked: dict[int, CheckedDevice] = {}
        """Devices by their number."""
        self._distrusted: dict[ArraySpec, str] = {}
        """Arrays that the host decodes from now on, and why."""

    def checked_device(self, device: DeviceApi) -> CheckedDevice:
        """Return a device together with the outcomes of its checks, the same object for each call."""
        with self._lock:
            checked = self._checked.get(device.index)
            if checked is None or checked.api is not device:
                checked = self._checked[device.index] = CheckedDevice(device)
            return checked

    def refuses(self, device: DeviceApi, spec: ArraySpec, target: Target, cast: Cast, checks: Checks) -> bool:
        """Whether a device is not trusted with a read. Runs the checks that the read depends on and that are due.

        Parameters
        ----------
        device : DeviceApi
            Device that would decode.
        spec, target, cast : ArraySpec, Target, Cast
            What is read.
        checks : {"warn", "strict", "off"}
            Option `checks`.

        Raises
        ------
        CudaError
            If a check fails and `checks` is ``"strict"``.
        """
        if spec in self._distrusted:
            return True
        if checks == "off":
            return False
        why = self.checked_device(device).why_not(spec, cast, points=isinstance(target, PointTarget))
        if why is not None and checks == "strict":
            raise CudaError(
                f"the GPU is not trusted with array '{spec.path}'",
                tried="the self-checks that the read rests on, with checks='strict'",
                found=why,
                do="run gpuzarr doctor, which checks again; checks='warn' lets the host decode",
            )
        return why is not None

    def known_failure(self, device: DeviceApi | None, spec: ArraySpec, cast: Cast, checks: Checks) -> str | None:
        """Return why `refuses` is true for reads of boxes of an array, as far as is known. Runs no check.

        Without a device, the stored outcomes of all GPUs in the cache folder decide, so that CUDA is not started.
        """
        if spec in self._distrusted:
            return self._distrusted[spec]
        if checks == "off":
            return None
        if device is not None:
            return self.checked_device(device).known_failure(spec, cast)
        for identity, outcomes in outcome_cache.newest_outcomes():
            failure = _describe_failure(required_checks(spec, cast, points=False), outcomes, identity)
            if failure is not None:
                return failure
        return None

    def distrust(self, device: DeviceApi, error: DifferentValuesError) -> None:
        """Let the host decode the array of `error` from now on, and warn about it."""
        identity = device.identity
        name = "the GPU" if identity is None else f"{identity.name}, driver {identity.driver}"
        self._distrusted[error.spec] = f"{name} has decoded a chunk to other bytes than the host"
        advise(
            f"other bytes of {error.spec}",
            f"array '{error.spec.path}' is decoded on the host from now on; this read is repeated there",
            found=f"{error.headline} ({name})",
            do=error.do,
        )
