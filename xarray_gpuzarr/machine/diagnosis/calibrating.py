"""The sweep as sections: what it found and where that is kept, and whether reads by it are on the quicker side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.cost.calibration import as_document, keep_calibration
from xarray_gpuzarr.decoders.cost.model import Calibration
from xarray_gpuzarr.errors import DeviceUnavailableError, OptionError
from xarray_gpuzarr.machine.diagnosis.clock import seconds_of
from xarray_gpuzarr.machine.diagnosis.device import DeviceReads, going_by
from xarray_gpuzarr.machine.diagnosis.report import Section, said
from xarray_gpuzarr.machine.diagnosis.samples import sample_of
from xarray_gpuzarr.machine.diagnosis.sweep import Grid, Progress, calibrate
from xarray_gpuzarr.process.cache_folder import cache_folder
from xarray_gpuzarr.process.threads import thread_budget

_SHOWN = (1, 8, 64, 512, 4096)
"""Chunks of a read, in the table."""
_SLACK = 1.25
"""Interpolation and noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Reads between the points of the sweep."""

    chunk_nbytes: Sequence[int] = (131_072, 2_097_152)
    n_chunks: Sequence[int] = (3, 24, 96)


def calibration_sections(api: DeviceApi, grid: Grid, layouts: Layouts, progress: Progress) -> Iterator[Section]:
    """Measure a calibration, keep it where reads find it, and read by it.

    Raises
    ------
    OptionError
        The cache folder cannot be written to.
    DeviceUnavailableError
        The device does not say what it is, so that nobody would find the calibration.
    """
    device, identity = DeviceReads(api), api.identity
    if identity is None:
        raise DeviceUnavailableError(
            "this device cannot be calibrated",
            tried="what it is called, and its driver",
            found="it does not say",
            do="leave --calibrate out",
        )
    _require_folder()
    title = "Where is the GPU quicker?"
    try:
        calibration = calibrate(device, grid, progress)
    except Exception as error:  # noqa: BLE001  # a device that is broken raises anything; the answer names it
        yield Section(name="calibration", title=title, failures=[said(error)])
        return
    path = keep_calibration(calibration, identity)
    yield _calibration_section(calibration, path, title)
    yield _choices_section(device, calibration, path, layouts, progress)


def _require_folder() -> None:
    """Make sure that a calibration can be kept, before minutes are spent on it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(b".")
    except OSError as error:
        raise OptionError(
            "a calibration cannot be kept here",
            tried=f"the cache folder, {folder}",
            found=f"{type(error).__name__}: {error}",
            do="set XARRAY_GPUZARR_CACHE_DIR to a folder that can be written to",
        ) from error


def _calibration_section(calibration: Calibration, path: Path, title: str) -> Section:
    n_threads = thread_budget()

    def ratio(codec: str, n: int, nbytes: int) -> str:
        host = calibration.host_seconds(codec, n, nbytes, n_threads)
        return f"{calibration.device_seconds(codec, n, nbytes) / host:.2f}"

    rows = [
        (f"{codec}, {nbytes}", *(ratio(codec, n, nbytes) for n in _SHOWN))
        for codec, times in calibration.codecs.items()
        for nbytes in times.device.chunk_nbytes
    ]
    return Section(
        name="calibration",
        title=title,
        columns=("codec, bytes of a chunk", *(f"{n} chunk{'s'[: n > 1]}" for n in _SHOWN)),
        rows=rows,
        notes=[
            f"Time by the GPU over that by {n_threads} host threads and a copy up: below 1 the GPU pays.",
            _at_once(calibration),
            f"Kept as {path.name} in {path.parent}: reads on such a machine go by it from now on.",
        ],
        facts={"file": path.name, "calibration": as_document(calibration)},
    )


def _at_once(calibration: Calibration) -> str:
    """Say what the longer reads have shown of the device."""
    wave, together = calibration.wave, calibration.overlaps
    calls = "?" if together is None else "together" if together else "one after another"
    return f"Chunks that the GPU decodes at once: {wave or '?'}; calls on several streams: {calls}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One layout, and how long reads of it take, in seconds."""

    codec: str
    chunk_nbytes: int
    n_chunks: int
    auto: float
    """As the calibration says."""
    device: float
    host: float
    """And one copy up."""

    @property
    def is_late(self) -> bool:
        return self.auto > _SLACK * min(self.device, self.host)


def _choices_section(
    device: DeviceReads, calibration: Calibration, path: Path, layouts: Layouts, progress: Progress
) -> Section:
    found = []
    for codec in calibration.codecs:
        for nbytes in layouts.chunk_nbytes:
            progress(f"by the calibration: {codec}, chunks of {nbytes} bytes")
            found += _choices(device, path, layouts, codec=codec, nbytes=nbytes)
    late = [choice for choice in found if choice.is_late]
    return Section(
        name="choices",
        title="Are reads by the calibration on the quicker side?",
        columns=("slower than the quicker side", "chunks", "by it, ms", "GPU, ms", "host, ms") if late else (),
        rows=[
            (f"{c.codec}, {c.chunk_nbytes}", f"{c.n_chunks}", *(f"{s * 1e3:.3g}" for s in (c.auto, c.device, c.host)))
            for c in late
        ],
        notes=[f"{len(found)} layouts between those of the sweep were read; slower than the quicker side: {len(late)}"],
        facts={
            "n_read": len(found),
            "n_slower": len(late),
            "slower": [f"{choice.codec}, {choice.chunk_nbytes} bytes x {choice.n_chunks}" for choice in late],
        },
    )


def _choices(device: DeviceReads, path: Path, layouts: Layouts, *, codec: str, nbytes: int) -> list[_Choice]:
    """Read some numbers of chunks three ways. Other options make streams anew, so numbers come within ways."""
    with sample_of(codec, chunk_nbytes=nbytes, n_chunks=max(layouts.n_chunks)) as sample:

        def timed(read: Callable[..., object]) -> list[float]:
            boxes = [sample.box(n) for n in layouts.n_chunks]
            return [seconds_of(device.whole(partial(read, sample.array, box))) for box in boxes]

        with going_by(str(path)):
            auto = timed(device.read)
        with going_by("off"):
            on_device, on_host = timed(device.read), timed(device.by_host)
    columns = zip(layouts.n_chunks, auto, on_device, on_host, strict=True)
    return [_Choice(codec=codec, chunk_nbytes=nbytes, n_chunks=n, auto=a, device=d, host=h) for n, a, d, h in columns]
