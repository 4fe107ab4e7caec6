"""Calibration files: what `model` needs to know of a machine, as JSON; and which of them is in force.

Written by ``gpuzarr doctor --calibrate`` into the cache folder, under a name by which reads on such a GPU and such a
host find it; none comes with this package. A file is read when it is first needed, and again when it has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from xarray_gpuzarr.cuda.api import DeviceIdentity
from xarray_gpuzarr.decoders.cost.model import Calibration, CodecTimes, DeviceTimes, HostRates
from xarray_gpuzarr.errors import GpuZarrError, OptionError
from xarray_gpuzarr.process.cache_folder import cache_folder
from xarray_gpuzarr.process.device_options import resource_options

FORMAT = "xarray_gpuzarr calibration"
VERSION = 1


Identify = Callable[[], DeviceIdentity | None]
"""Returns what the calling thread's device is; may start CUDA, so it is asked only where an answer matters."""


def calibration_in_force(identify: Identify) -> Calibration | None:
    """Return the calibration that reads go by: the one that was chosen, else what was measured on such a machine.

    Parameters
    ----------
    identify : callable
        See `Identify`; not called where the options say which calibration it is, or the cache folder has none.

    Raises
    ------
    OptionError
        The options name a file that cannot be used.

    Notes
    -----
    One look at the file system a read: at the file that was named, or at the folder, which changes with its files. What
    is found in the folder never makes a read fail.
    """
    chosen = resource_options().calibration
    if chosen is not None:
        return None if chosen == "off" else read_calibration(chosen)
    folder = _folder(*map(os.environ.get, _WHERE))
    try:
        names = _calibrations_in(folder, os.stat(folder).st_mtime_ns)  # noqa: PTH116  # of a string, once a read
    except OSError:
        return None
    if not names:
        return None
    try:
        identity = identify()
    except (ImportError, OSError, GpuZarrError):  # there is no such device in this process
        return None
    read = None if identity is None else names.get(calibration_name(identity))
    return None if read is None else read()


def calibration_name(identity: DeviceIdentity) -> str:
    """Return what the file of such a device in such a host is called.

    Notes
    -----
    GPUs of a kind are as quick as each other, so that one file serves all of them. Several hosts may share a cache
    folder.
    """
    versions = tuple(sorted(identity.versions.items()))
    return _name((identity.name, identity.compute_capability, identity.driver, versions))


@lru_cache(maxsize=4)
def _name(of_gpu: tuple[object, ...]) -> str:
    told = json.dumps([*of_gpu, processor(), os.cpu_count()])
    return f"{_PREFIX}{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"


@cache
def processor() -> str:
    """Return what the host's processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def keep_calibration(calibration: Calibration, identity: DeviceIdentity) -> Path:
    """Write a calibration where reads on such a machine find it; return the file.

    Raises
    ------
    OSError
        The cache folder cannot be written to.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / calibration_name(identity)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(as_document(calibration), indent=1) + "\n")
    partial.replace(path)
    _calibrations_in.cache_clear()  # the folder's clock may be coarse
    return path


_PREFIX = "calibration-"
_WHERE = ("XARRAY_GPUZARR_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
"""Variables of the environment that say where the cache folder is."""


@lru_cache(maxsize=4)
def _folder(*_environment: str | None) -> str:
    """Return the cache folder as the environment has it, without making paths once a read."""
    return str(cache_folder())


@lru_cache(maxsize=4)
def _calibrations_in(folder: str, _modified: int) -> Mapping[str, Callable[[], Calibration | None]]:
    """Return the calibrations of a folder by name; each is read when it is called for, once."""
    names = [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name.endswith(".json")]  # noqa: PTH208
    return {name: cache(lambda name=name: _usable(Path(folder, name))) for name in names}


def _usable(path: Path) -> Calibration | None:
    try:
        return _parse(path)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ):  # of another version, or half of it
        return None


def read_calibration(path: str) -> Calibration:
    """Return what a file says.

    Raises
    ------
    OptionError
        There is no such file, or it is no calibration that this version understands.
    """
    try:
        modified = os.stat(path).st_mtime_ns  # noqa: PTH116  # of a string, once a read
    except OSError as error:
        raise _unusable(path, f"{type(error).__name__}: {error}") from error
    return _read(path, modified)


@lru_cache(maxsize=4)
def _read(path: str, _modified: int) -> Calibration:
    try:
        return _parse(Path(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise _unusable(path, found) from error


def _parse(path: Path) -> Calibration:
    return from_document(json.loads(path.read_text()))


def _unusable(path: str, found: str) -> OptionError:
    return OptionError(
        "unusable calibration",
        tried=f"calibration={path!r}",
        found=found,
        do="write one anew on this machine with gpuzarr doctor --calibrate, and leave calibration out: reads find it",
    )


def from_document(document: Mapping[str, Any]) -> Calibration:
    """Return what a parsed file says.

    Raises
    ------
    KeyError, TypeError, ValueError
        Something is missing, of another type, or no possible measurement.
    """
    if (document["format"], document["version"]) != (FORMAT, VERSION):
        raise ValueError(
            f"format {document['format']!r}, version {document['version']!r}; known: {FORMAT!r}, {VERSION}"
        )
    return Calibration(
        gpu=str(document["gpu"]),
        date=str(document["date"]),
        upload_seconds=float(document["upload"]["seconds"]),
        upload_rate=float(document["upload"]["bytes_per_second"]),
        codecs={name: _codec(times) for name, times in document["codecs"].items()},
        gds_is_quicker=bool(document.get("gds_is_quicker", False)),
        wave=None if (wave := document.get("wave")) is None else int(wave),
        overlaps=None if (overlaps := document.get("overlaps")) is None else bool(overlaps),
    )


def _codec(times: Mapping[str, Any]) -> CodecTimes:
    device, host = times["device"], times["host"]
    return CodecTimes(
        device=DeviceTimes(
            chunk_nbytes=tuple(map(int, device["chunk_nbytes"])),
            n_chunks=tuple(map(int, device["n_chunks"])),
            seconds=tuple(tuple(map(float, row)) for row in device["seconds"]),
        ),
        host=HostRates(
            chunk_nbytes=tuple(map(int, host["chunk_nbytes"])),
            thread_rates=tuple(map(float, host["thread_bytes_per_second"])),
            most=float(host["most_bytes_per_second"]),
        ),
    )


def as_document(calibration: Calibration) -> dict[str, Any]:
    """Return what a file of this calibration holds."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "gpu": calibration.gpu,
        "date": calibration.date,
        "gds_is_quicker": calibration.gds_is_quicker,
        "wave": calibration.wave,
        "overlaps": calibration.overlaps,
        "upload": {"seconds": calibration.upload_seconds, "bytes_per_second": calibration.upload_rate},
        "codecs": {
            name: {
                "device": {
                    "chunk_nbytes": list(times.device.chunk_nbytes),
                    "n_chunks": list(times.device.n_chunks),
                    "seconds": [list(row) for row in times.device.seconds],
                },
                "host": {
                    "chunk_nbytes": list(times.host.chunk_nbytes),
                    "thread_bytes_per_second": list(times.host.thread_rates),
                    "most_bytes_per_second": times.host.most,
                },
            }
            for name, times in calibration.codecs.items()
        },
    }
