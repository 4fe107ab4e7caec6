"""Choose the self-checks of an array's reads, and run them on a thread with a time limit: a device may never answer."""

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
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.cuda.checks import remembered
from xarray_gpuzarr.decoders.cuda.checks.codecs import compressor, elements, shuffle
from xarray_gpuzarr.decoders.cuda.checks.placing import COPIES, COPY, MOVES, SUMS, placing
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, WrongAnswerError
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.exit_threads import start_thread
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    AsTypeSpec,
    BloscSpec,
    CompressorSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    GzipSpec,
    Lz4Spec,
    PackBitsSpec,
    ZlibSpec,
    ZstdSpec,
)


@lru_cache(maxsize=256)
def checks_of(spec: ArraySpec, cast: Cast, *, points: bool) -> tuple[Check, ...]:
    """Return what reads of an array that the device decodes rest on; `points`: single elements rather than boxes."""
    chain = chain_of(spec)
    assert not isinstance(chain, str)
    checks = [COPIES, MOVES, SUMS]
    if chain.compressor is not None:
        checks.append(compressor(chain.compressor, chain.inner_nbytes))
    if chain.shuffle is not None:
        checks.append(shuffle(chain.shuffle.elementsize))
    checks += [elements(codec) for codec in spec.codecs.stages if isinstance(codec, ElementSpec)]
    return (*checks, placing(spec.dtype, cast, points=points))


def usual_checks() -> Iterator[Check]:
    """Yield what reads of most stores rest on: all codecs, and the filters and conversions that are met most."""
    yield from (COPIES, MOVES, SUMS)
    yield from (compressor(spec, nbytes) for spec, nbytes in _COMPRESSORS)
    yield from map(shuffle, (2, 4, 8))
    yield from map(elements, _FILTERS)
    for dtype in ("|u1", "<i2", "<f4", "<f8", ">f4"):
        yield placing(dtype, Cast(dtype=np.dtype(dtype).newbyteorder("=").str), points=False)
    packed = [(stored, result) for stored in ("<i2", "|u1") for result in ("<f4", "<f8")]
    for stored, result in (*packed, ("<f4", "<f4"), ("<f8", "<f8")):
        yield placing(stored, Cast(dtype=result, mask=(7.0,), scale=0.5, offset=-3.0), points=False)
    yield placing("<f4", Cast(dtype="<f4"), points=True)


_COMPRESSORS: tuple[tuple[CompressorSpec, int], ...] = (
    *((spec, nbytes) for spec in (ZstdSpec(), Lz4Spec(), GzipSpec(), ZlibSpec()) for nbytes in (2**10, 1)),
    (GzipSpec(), 2**20),
    *((BloscSpec(cname=n, shuffle="shuffle", typesize=4), 2**10) for n in ("lz4", "zstd", "blosclz", "zlib", "snappy")),
)
_FILTERS: tuple[ElementSpec, ...] = (
    DeltaSpec(decoded="<i2", encoded="<i2"),
    DeltaSpec(decoded="<i4", encoded="<i4"),
    DeltaSpec(decoded="<f4", encoded="<f4"),
    FixedScaleOffsetSpec(decoded="<f8", encoded="<i2", scale=10, offset=273),
    AsTypeSpec(decoded="<f4", encoded="<f8"),
    PackBitsSpec(decoded="|b1", encoded="|u1"),
)


PATIENCE_S = 120.0
"""From when on a check counts as one that never ends: kernels are built meanwhile, some seconds each, and longer where
many processes begin at once."""
_LESS_PATIENCE_S = 5.0
_TICK_S = 0.25
"""Patience is counted in ticks, so that a process that was stopped for hours has lost one of them."""
_LEAN = ResourceOptions(slot_nbytes=2**18, n_slots=2, scratch_nbytes=2**26)

About = Literal["device", "process", "moment"]
"""Subject of a failure: the device, for good; this process, whose context may be broken; or only this
moment, in which memory does not suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    name: str
    found: str
    """Finding of the check; empty if it has passed."""
    seconds: float
    nbytes: int
    """Bytes that were compared."""
    about: About = "device"

    @property
    def passed(self) -> bool:
        """Whether the device gave the right answer."""
        return not self.found

    @property
    def dated(self) -> str:
        """Text that is kept of the result: the finding, and its date."""
        return self.found and f"{self.found}, on {datetime.now(UTC):%Y-%m-%d}"


def check_all(api: DeviceApi) -> Iterator[CheckResult]:
    """Run all usual checks anew, one after another, and remember what they find, and nothing from before."""
    assert api.identity is not None
    remembered.forget(api.identity)
    for answer in run_checks(api, tuple({check.name: check for check in usual_checks()}.values())):
        if answer.about == "device":
            remembered.save(api.identity, {answer.name: answer.dated})
        yield answer


def run_checks(api: DeviceApi, checks: Sequence[Check], *, until_failure: bool = False) -> Iterator[CheckResult]:
    """Run checks, `until_failure` up to the first that fails, and yield their answers as they come.

    A check that does not end is given up, and what it holds is left to its thread for good. Those behind it may not end
    either, and are given less time.
    """
    remaining, patience_s = list(checks), PATIENCE_S
    while remaining:
        answers: SimpleQueue[CheckResult] = SimpleQueue()
        run = partial(_run, api, list(remaining), answers, until_failure=until_failure)
        try:
            start_thread(run, "self-check")
        except RuntimeError as error:  # the system has no more threads
            yield CheckResult(name=remaining[0].name, found=str(error), seconds=0.0, nbytes=0, about="moment")
            return
        while remaining:
            check = remaining.pop(0)
            answer = _within(answers, patience_s)
            if answer is None:
                fault = f"no end after {patience_s:g} s"
                # Where not even copies can be made, the context may be broken.
                about: About = "process" if check.name == COPY else "device"
                yield CheckResult(name=check.name, found=fault, seconds=patience_s, nbytes=0, about=about)
                patience_s = min(patience_s, _LESS_PATIENCE_S)
                break
            yield answer
            if until_failure and not answer.passed:
                return
        if until_failure:
            return


def _within(answers: SimpleQueue[CheckResult], seconds: float) -> CheckResult | None:
    """Return the next answer; None if there is none for so many seconds in which this process runs."""
    for _ in range(round(seconds / _TICK_S)):
        with suppress(Empty):
            return answers.get(timeout=_TICK_S)
    return None


def _run(api: DeviceApi, checks: Sequence[Check], answers: SimpleQueue[CheckResult], *, until_failure: bool) -> None:
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


def _answer(check: Check, run: Callable[[Check], int]) -> CheckResult:
    """Run a check; once more if memory does not suffice, which may be another's."""
    start, nbytes, fault = time.perf_counter(), 0, ""
    about: About = "device"
    try:
        try:
            nbytes = run(check)
        except MemoryError:
            nbytes = run(check)
    except WrongAnswerError as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001  # whatever may go wrong, what needs this goes to the host
        fault = f"{type(error).__name__}: {error.found if isinstance(error, GpuZarrError) else error}"
        about = "moment" if isinstance(error, MemoryError) else "process"  # memory of the device or of the host
    return CheckResult(name=check.name, found=fault, seconds=time.perf_counter() - start, nbytes=nbytes, about=about)
