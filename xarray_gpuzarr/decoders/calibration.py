"""Calibration files: what `cost` needs to know of a machine, as JSON.

Written by ``python -m benchmarks.gpu.tune`` on the machine that they are about; none comes with this package. A file is
read when it is first needed, and again when it has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from xarray_gpuzarr.decoders.cost import Calibration, CodecTimes, DeviceTimes, HostRates
from xarray_gpuzarr.errors import OptionError

FORMAT = "xarray_gpuzarr calibration"
VERSION = 1


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
        return from_document(json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise _unusable(path, found) from error


def _unusable(path: str, found: str) -> OptionError:
    return OptionError(
        "unusable calibration",
        tried=f"calibration={path!r}",
        found=found,
        do="write it anew on this machine with python -m benchmarks.gpu.tune, or leave calibration out: the device "
        "then decodes all that it can",
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
