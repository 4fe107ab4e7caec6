"""`doctor`: the parts of an examination, in order: what is here, what is right, and how fast it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.choice import resolve_device
from xarray_gpuzarr.decoders.cuda.checks import check_all
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import GpuZarrError, OptionError
from xarray_gpuzarr.machine.diagnosis.machine import machine_section
from xarray_gpuzarr.machine.diagnosis.rates import Sizes, copies_section, current_device, host_section
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section, said

Progress = Callable[[str], None]
"""Is told what is being done."""

USUAL = Sizes()


def doctor(device: str = "auto", *, progress: Progress = lambda _: None) -> Diagnosis:
    """Examine this machine: what it has, whether the GPU decodes correctly, and how fast GPU and host are.

    The same as the command ``gpuzarr doctor``. Shows itself in a notebook; `Diagnosis.document` is for programs.

    Parameters
    ----------
    device : "auto", "cuda", "cuda:1" (any number) or "host"
        ``"auto"``: the GPU if there is one with all that it needs, else the host.
    progress : callable
        Told what is being done, as text.

    Returns
    -------
    Diagnosis

    Raises
    ------
    DeviceUnavailableError
        ``"cuda"`` was asked for, and there is no GPU that can be used.
    OptionError
        `device` is unknown.
    """
    return Diagnosis(sections=tuple(examine(device, progress=progress)))


def examine(device: str, *, progress: Progress, sizes: Sizes = USUAL) -> Iterator[Section]:
    """Yield the parts of `doctor` as they are done. Parameters as there; raises before the first of them."""
    if device == "workers":
        raise OptionError(
            "this machine is examined, not workers",
            tried="device='workers'",
            found="doctor examines this machine, not the workers of a cluster",
            do="run doctor there: client.run(xarray_gpuzarr.doctor)",
        )
    return _examine(resolve_device(device), progress=progress, sizes=sizes)


def _examine(device: Device, *, progress: Progress, sizes: Sizes) -> Iterator[Section]:
    progress("what is here")
    api, broken = (None, "") if device == "host" else _usable_device(device)
    yield machine_section(api)
    if broken:
        yield Section(name="device", title="The GPU cannot be used", failures=[broken], facts=broken)
    if api is not None:
        progress("known answers")
        yield _section_of("answers", "Does the GPU decode correctly?", lambda: answers_section(api))
        progress("copies")
        yield _section_of("copies", "How fast are copies, and a read?", lambda: copies_section(api, sizes))
    progress("rates of the host")
    yield host_section(sizes)


def _section_of(name: str, title: str, examine_part: Callable[[], Section]) -> Section:
    """Return a part, or what kept the device from it."""
    try:
        return examine_part()
    except Exception as error:  # noqa: BLE001  # a device that is broken raises anything; the answer names it
        failure = said(error)
        return Section(name=name, title=title, failures=[failure], facts={"failed": failure})


def answers_section(api: DeviceApi) -> Section:
    """Ask a device what is known, and say what it got right, how long that took and at which rate."""
    answers = list(check_all(api))
    wrong = [answer for answer in answers if not answer.passed]
    return Section(
        name="answers",
        title="Does the GPU decode correctly?",
        columns=("test", "", "ms", "MB/s"),
        rows=[
            (
                a.name,
                "right" if a.passed else "WRONG",
                f"{a.seconds * 1e3:.2f}",
                f"{a.nbytes / a.seconds / 1e6:.3g}" if a.seconds > 0 else "",
            )
            for a in answers
        ],
        notes=[f"{len(answers) - len(wrong)} of {len(answers)} are right; the first of a kind waits for its kernel."],
        failures=[f"{answer.name}: {answer.found}" for answer in wrong],
        facts=[
            {"name": a.name, "passed": a.passed, "found": a.found, "seconds": a.seconds, "nbytes": a.nbytes}
            for a in answers
        ],
    )


def _usable_device(asked: Device) -> tuple[DeviceApi | None, str]:
    """Return the device, or why it cannot be used and what mends that."""
    try:
        device = current_device(asked)
        _ = device.identity  # for which nvCOMP is found
    except GpuZarrError as error:
        return None, f"{said(error)}. To mend it: {error.do}"
    except Exception as error:  # noqa: BLE001  # likewise: packages that do not fit each other
        return None, said(error)
    return device, ""
