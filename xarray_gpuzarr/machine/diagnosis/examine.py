"""`examine`: carries out the parts of an examination in order; and `doctor`, which returns all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.find_gpu import find_gpu
from xarray_gpuzarr.decoders.choice import resolve_device
from xarray_gpuzarr.decoders.cuda.checks import check_all
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import GpuZarrError, OptionError
from xarray_gpuzarr.machine.diagnosis.machine import machine_section
from xarray_gpuzarr.machine.diagnosis.rates import Sizes, copies_section, host_section
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section, one_line

Progress = Callable[[str], None]
"""Called with a text that says what is being examined."""

USUAL_SIZES = Sizes()
"""Sizes of what is read and copied for users. Tests choose smaller ones."""


def doctor(device: str = "auto", *, progress: Progress = lambda _: None) -> Diagnosis:
    """Examine this machine: what it has, whether its GPU decodes correctly, and how fast GPU and host are.

    The command ``gpuzarr doctor`` prints the same. A notebook shows the result as tables, and `Diagnosis.document` is
    for programs.

    Parameters
    ----------
    device : "auto", "cuda", "cuda:1" (any number) or "host"
        ``"auto"``: the GPU if there is one with all that it needs, otherwise the host.
    progress : callable
        Called with a text that says what is being examined.

    Returns
    -------
    Diagnosis

    Raises
    ------
    DeviceUnavailableError
        `device` is a GPU, and no GPU can be used.
    OptionError
        `device` is unknown.
    """
    return Diagnosis(sections=tuple(examine(device, progress=progress)))


def examine(device: str, *, progress: Progress, sizes: Sizes = USUAL_SIZES) -> Iterator[Section]:
    """Return an iterator over the sections of `doctor`, which carries each part out when its section is drawn.

    Parameters
    ----------
    device, progress
        As for `doctor`.
    sizes : Sizes
        Sizes of what is read and copied.

    Raises
    ------
    DeviceUnavailableError, OptionError
        As `doctor`; raised by this call and not by the iterator.
    """
    if device == "workers":
        raise OptionError(
            "doctor cannot examine workers",
            tried="device='workers'",
            found="doctor examines this machine, not the workers of a cluster",
            do="run doctor there: client.run(xarray_gpuzarr.doctor)",
        )
    return _examine(resolve_device(device), progress=progress, sizes=sizes)


def _examine(device: Device, *, progress: Progress, sizes: Sizes) -> Iterator[Section]:
    """Yield the sections; a generator of its own, so that `examine` raises its errors when it is called."""
    progress("what is here")
    api: DeviceApi | None = None
    failure = ""
    if device != "host":
        api, failure = _find_gpu(device)
    yield machine_section(api)
    if failure:
        yield Section(name="device", title="The GPU cannot be used", failures=[failure], facts=failure)
    if api is not None:
        progress("known answers")
        yield _try_part("answers", "Does the GPU decode correctly?", lambda: answers_section(api))
        progress("copies")
        yield _try_part("copies", "How fast are copies, and a read?", lambda: copies_section(api, sizes))
    progress("rates of the host")
    yield host_section(sizes)


def _try_part(name: str, title: str, examine_part: Callable[[], Section]) -> Section:
    """Return the section that `examine_part` returns or, if it raises an error, a section that reports this."""
    try:
        return examine_part()
    except Exception as error:  # noqa: BLE001  # a broken device raises anything, and the section reports it
        failure = one_line(error)
        return Section(name=name, title=title, failures=[failure], facts={"failed": failure})


def answers_section(api: DeviceApi) -> Section:
    """Run all self-checks on a device. Return a section with the outcome, the time and the rate of each."""
    rows = []
    failures = []
    facts = []
    for answer in check_all(api):
        verdict = "right" if answer.passed else "WRONG"
        rate = ""  # a check that could not begin has none
        if answer.seconds > 0:
            rate = f"{answer.nbytes / answer.seconds / 1e6:.3g}"
        rows.append((answer.name, verdict, f"{answer.seconds * 1e3:.2f}", rate))
        if not answer.passed:
            failures.append(f"{answer.name}: {answer.found}")
        facts.append(
            {
                "name": answer.name,
                "passed": answer.passed,
                "found": answer.found,
                "seconds": answer.seconds,
                "nbytes": answer.nbytes,
            }
        )
    n_right = len(rows) - len(failures)
    return Section(
        name="answers",
        title="Does the GPU decode correctly?",
        columns=("test", "", "ms", "MB/s"),
        rows=rows,
        notes=[f"{n_right} of {len(rows)} are right. The first test of each kernel also compiles it."],
        failures=failures,
        facts=facts,
    )


def _find_gpu(device: Device) -> tuple[DeviceApi | None, str]:
    """Return the GPU of a device and an empty text; or None and a text that says why the GPU cannot be used."""
    try:
        api = find_gpu(device)
        _ = api.identity  # raises an error if nvCOMP is missing, because it includes the version of nvCOMP
    except GpuZarrError as error:
        return None, f"{one_line(error)}. To mend it: {error.do}"
    except Exception as error:  # noqa: BLE001  # packages that do not fit together raise anything
        return None, one_line(error)
    return api, ""
