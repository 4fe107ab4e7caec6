"""The known-answer tests of the device, as a table."""

from __future__ import annotations

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.cuda.checks import check_all
from xarray_gpuzarr.machine.diagnosis.report import Section


def answers_section(api: DeviceApi) -> Section:
    """Ask a device what is known, and say what it got right, how long that took and at which rate."""
    answers = list(check_all(api))
    wrong = [answer for answer in answers if not answer.passed]
    return Section(
        name="answers",
        title="Does the GPU decode correctly?",
        columns=("test", "", "ms", "MB/s"),
        rows=[
            (a.name, "right" if a.passed else "WRONG", f"{a.seconds * 1e3:.2f}", _rate(a.nbytes, a.seconds))
            for a in answers
        ],
        notes=[f"{len(answers) - len(wrong)} of {len(answers)} are right; the first of a kind waits for its kernel."],
        failures=[f"{answer.name}: {answer.found}" for answer in wrong],
        facts=[
            {"name": a.name, "passed": a.passed, "found": a.found, "seconds": a.seconds, "nbytes": a.nbytes}
            for a in answers
        ],
    )


def _rate(nbytes: int, seconds: float) -> str:
    return f"{nbytes / seconds / 1e6:.3g}" if seconds > 0 else ""
