"""Choose the self-checks that reads of an array depend on, and run them.

Checks run on a thread of their own with a time limit, because a faulty device may never answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import Literal

import numpy as np

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.chain import find_chain
from xarray_gpuzarr.decoders.cuda.checks import outcome_cache
from xarray_gpuzarr.decoders.cuda.checks.codecs import compressor_check, element_check, shuffle_check
from xarray_gpuzarr.decoders.cuda.checks.placing import COPIES, COPIES_NAME, MOVES, SUMS, placing_check
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, WrongAnswerError
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.exit_threads import start_thread
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import BloscSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec
from xarray_gpuzarr.stored.element_codecs import (
    AsTypeSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
)


@lru_cache(maxsize=256)
def required_checks(spec: ArraySpec, cast: Cast, *, points: bool) -> tuple[Check, ...]:
    """Return the checks of everything that the device does in a read of an array.

    Parameters
    ----------
    spec : ArraySpec
        An array that the device decodes.
    cast : Cast
        Cast of the read.
    points : bool
        Whether single elements are read, rather than boxes.
    """
    chain = find_chain(spec)
    assert not isinstance(chain, str)
    checks = [COPIES, MOVES, SUMS]
    if chain.compressor is not None:
        checks.append(compressor_check(chain.compressor, chain.inner_nbytes))
    if chain.shuffle is not None:
        checks.append(shuffle_check(chain.shuffle.elementsize))
    checks += [element_check(codec) for codec in spec.codecs.stages if isinstance(codec, ElementSpec)]
    return (*checks, placing_check(spec.dtype, cast, points=points))


def usual_checks() -> Iterator[Check]:
    """Yield the checks that reads of most stores depend on: all compressors, common filters and common casts."""
    yield from (COPIES, MOVES, SUMS)
    for compressor in (ZstdSpec(), Lz4Spec(), GzipSpec(), ZlibSpec()):
        for nbytes in (2**10, 1):  # chunks of one byte have checks of their own
            yield compressor_check(compressor, nbytes)
    yield compressor_check(GzipSpec(), 2**20)  # long chunks are decoded by another algorithm
    for cname in ("lz4", "zstd", "blosclz", "zlib", "snappy"):
        yield compressor_check(BloscSpec(cname=cname, shuffle="shuffle", typesize=4), 2**10)
    yield from map(shuffle_check, (2, 4, 8))
    yield from map(element_check, _USUAL_CODECS)
    for dtype in ("|u1", "<i2", "<f4", "<f8", ">f4"):
        yield placing_check(dtype, Cast(dtype=np.dtype(dtype).newbyteorder("=").str), points=False)
    for stored, result in _USUAL_SCALED:
        yield placing_check(stored, Cast(dtype=result, mask=(7.0,), scale=0.5, offset=-3.0), points=False)
    yield placing_check("<f4", Cast(dtype="<f4"), points=True)


_USUAL_SCALED = (
    ("<i2", "<f4"),
    ("<i2", "<f8"),
    ("|u1", "<f4"),
    ("|u1", "<f8"),
    ("<f4", "<f4"),
    ("<f8", "<f8"),
)
"""Stored dtypes and result dtypes of packed variables."""
_USUAL_CODECS: tuple[ElementSpec, ...] = (
    DeltaSpec(decoded="<i2", encoded="<i2"),
    DeltaSpec(decoded="<i4", encoded="<i4"),
    DeltaSpec(decoded="<f4", encoded="<f4"),
    FixedScaleOffsetSpec(decoded="<f8", encoded="<i2", scale=10, offset=273),
    AsTypeSpec(decoded="<f4", encoded="<f8"),
    PackBitsSpec(decoded="|b1", encoded="|u1"),
)
"""Common codecs of elements."""


PATIENCE_S = 120.0
"""Seconds after which a check is given up. A check may have to build a kernel. That takes some seconds, and longer if
many processes start at once."""
_SHORTER_PATIENCE_S = 5.0
"""Seconds that each check has after one was given up: those after it may not end either."""
_TICK_S = 0.25
"""Seconds of one wait. Waits are counted, so that a process that was stopped for hours loses only one of them."""
_SMALL_OPTIONS = ResourceOptions(slot_nbytes=2**18, n_slots=2, scratch_nbytes=2**26)
"""Options of the checks' workspace. A slot holds the longest bytes that `trial.upload` is given, 100 003."""

FailureScope = Literal["device", "process", "moment"]
"""Where a failure holds: for the device, for good; for this process, whose CUDA context may be broken; or only at this
moment, because memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    name: str
    found: str
    """Finding of the check; empty if it has passed."""
    seconds: float
    """Duration in seconds."""
    nbytes: int
    """Number of bytes that were compared."""
    scope: FailureScope = "device"
    """Where the result holds; always ``"device"`` if the check has passed."""

    @property
    def passed(self) -> bool:
        """Whether the device has given the right answer."""
        return not self.found

    @property
    def dated_finding(self) -> str:
        """Finding and today's date, as they are stored; empty if the check has passed."""
        return self.found and f"{self.found}, on {datetime.now(UTC):%Y-%m-%d}"


def check_all(api: DeviceApi) -> Iterator[CheckResult]:
    """Run all usual checks again, one after another; yield each result.

    All stored outcomes of the device are deleted first. A new result is stored if it holds for the device.
    """
    assert api.identity is not None
    outcome_cache.forget(api.identity)
    # Some lengths and codecs share a check, which runs once.
    checks_by_name = {check.name: check for check in usual_checks()}
    for result in run_checks(api, tuple(checks_by_name.values())):
        if result.scope == "device":
            outcome_cache.save(api.identity, {result.name: result.dated_finding})
        yield result


def run_checks(api: DeviceApi, checks: Sequence[Check], *, until_failure: bool = False) -> Iterator[CheckResult]:
    """Run checks one after another, and yield each result as it comes.

    A check that does not end within the time limit has failed. Its thread and its workspace are left as they are, and
    later checks run on another thread, with a shorter limit.

    Parameters
    ----------
    api : DeviceApi
        Device to check.
    checks : sequence of Check
        Checks to run.
    until_failure : bool
        Whether to stop after the first check that fails.
    """
    remaining = list(checks)
    patience_s = PATIENCE_S
    while remaining:
        results: SimpleQueue[CheckResult] = SimpleQueue()
        run = partial(_run, api, list(remaining), results, until_failure=until_failure)
        try:
            start_thread(run, "self-check")
        except RuntimeError as error:  # the system has no more threads
            yield CheckResult(name=remaining[0].name, found=str(error), seconds=0.0, nbytes=0, scope="moment")
            return
        while remaining:
            check = remaining.pop(0)
            result = _next_result(results, patience_s)
            if result is None:
                fault = f"no end after {patience_s:g} s"
                # If not even a copy ends, the context may be broken rather than the device.
                scope: FailureScope = "process" if check.name == COPIES_NAME else "device"
                yield CheckResult(name=check.name, found=fault, seconds=patience_s, nbytes=0, scope=scope)
                if until_failure:
                    return
                patience_s = min(patience_s, _SHORTER_PATIENCE_S)
                break
            yield result
            if until_failure and not result.passed:
                return


def _next_result(results: SimpleQueue[CheckResult], seconds: float) -> CheckResult | None:
    """Return the next result; None if none has come after `seconds` in which this process was running."""
    for _ in range(round(seconds / _TICK_S)):
        with suppress(Empty):
            return results.get(timeout=_TICK_S)
    return None


def _run(api: DeviceApi, checks: Sequence[Check], results: SimpleQueue[CheckResult], *, until_failure: bool) -> None:
    """Run checks one after another, with a workspace of their own, and put each result into a queue."""
    # Closing the workspace may fail on a device that no longer works. All results are in the queue by then.
    with suppress(Exception), ExitStack() as stack:
        workspace: Workspace | None = None

        def run(check: Check) -> int:
            nonlocal workspace
            if workspace is None:  # made here so that an error is one of the first check
                stack.enter_context(api.activate())
                workspace = Workspace(api, _SMALL_OPTIONS, is_own_consumer=True)
                stack.callback(workspace.close)
            return check.run(workspace)

        for check in checks:
            result = _run_check(check, run)
            results.put(result)
            if until_failure and not result.passed:
                return


def _run_check(check: Check, run: Callable[[Check], int]) -> CheckResult:
    """Run a check and return its result. If memory is short, run it once more: others may have freed memory."""
    start = time.perf_counter()
    nbytes = 0
    fault = ""
    scope: FailureScope = "device"
    try:
        try:
            nbytes = run(check)
        except MemoryError:
            nbytes = run(check)
    except WrongAnswerError as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the host decodes what needs this check
        reason = error.found if isinstance(error, GpuZarrError) else error
        fault = f"{type(error).__name__}: {reason}"
        scope = "moment" if isinstance(error, MemoryError) else "process"
    seconds = time.perf_counter() - start
    return CheckResult(name=check.name, found=fault, seconds=seconds, nbytes=nbytes, scope=scope)
