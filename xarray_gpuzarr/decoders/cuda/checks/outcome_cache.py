"""Outcomes of self-checks, kept in the user's cache folder for each GPU, driver, and set of library versions.

They are valid only for the code that made them: if any source file of this package changes, checks run again. They also
run again in each process if the file of outcomes cannot be read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from uuid import uuid4

import numcodecs
import numpy as np

from xarray_gpuzarr.cuda.api import DeviceIdentity


def cache_folder() -> Path:
    """Return ``XARRAY_GPUZARR_CACHE_DIR``, or ``xarray-gpuzarr`` in the user's caches. The folder may not exist.

    References
    ----------
    XDG Base Directory Specification 0.8.
    """
    setting = os.environ.get("XARRAY_GPUZARR_CACHE_DIR")
    if setting:
        return Path(setting)
    # `Path.expanduser` would raise for a user without a home folder.
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(caches) / "xarray-gpuzarr"


_SOURCE_SUFFIXES = {".py", ".c", ".h", ".so", ".cu", ".cuh", ".json"}
"""Suffixes of the files that decide what a check computes, and what the right answer is."""

Outcomes = Mapping[str, str]
"""Finding of each check, by the check's name; empty if it has passed."""


def load(identity: DeviceIdentity) -> Outcomes:
    """Return the stored outcomes of a device; none if there is no valid file."""
    _, outcomes = _read(_path(identity))
    return outcomes


def save(identity: DeviceIdentity, outcomes: Outcomes) -> None:
    """Store outcomes of a device, beside those that are stored already. Does nothing if the file cannot be written."""
    path = _path(identity)
    _, stored_outcomes = _read(path)
    document = {
        "made of": _package_digest(),
        "identity": _fields(identity),
        "checks": {**stored_outcomes, **outcomes},
    }
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(path)
        # The folder's modification time, which is part of the cache's key, may be too coarse to show the change.
        _newest_in_folder.cache_clear()
    except OSError:
        with suppress(OSError):
            temporary.unlink()


def forget(identity: DeviceIdentity) -> None:
    """Delete the stored outcomes of a device."""
    with suppress(OSError):
        _path(identity).unlink()
    _newest_in_folder.cache_clear()  # as in `save`


def newest_outcomes() -> Sequence[tuple[DeviceIdentity, Outcomes]]:
    """Return the newest stored outcomes of each GPU in the cache folder, and the identity that the GPU had then.

    Machines that share a home folder share the cache folder, so some of these GPUs may be in other machines. This is
    called for every variable, so files are read only once for each modification time of the folder.
    """
    folder = cache_folder()
    try:
        return _newest_in_folder(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=4)
def _newest_in_folder(folder: Path, _modified_ns: int) -> Sequence[tuple[DeviceIdentity, Outcomes]]:
    newest: dict[str, tuple[float, DeviceIdentity, Outcomes]] = {}
    with suppress(OSError):
        for path in folder.glob("checks-*.json"):
            identity, outcomes = _read(path)
            modified = path.stat().st_mtime
            if identity is None:
                continue
            newest_modified = newest[identity.uuid][0] if identity.uuid in newest else 0.0
            if modified > newest_modified:
                newest[identity.uuid] = (modified, identity, outcomes)
    return tuple((identity, outcomes) for _, identity, outcomes in newest.values())


def _read(path: Path) -> tuple[DeviceIdentity | None, Outcomes]:
    """Return the identity and the outcomes in a file; None and no outcomes if it is damaged, or made by other code."""
    try:
        document = json.loads(path.read_text()) if path.is_file() else {}
        checks, fields = document["checks"], document["identity"]
        identity = DeviceIdentity(**fields)
        identity_texts = [value for name, value in fields.items() if name != "versions"]
        texts = [*checks.values(), *fields["versions"].values(), *identity_texts]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, {}
    if document.get("made of") != _package_digest() or not all(isinstance(text, str) for text in texts):
        return None, {}
    return identity, checks


def _path(identity: DeviceIdentity) -> Path:
    text = json.dumps([_fields(identity), _package_digest()], sort_keys=True)
    return cache_folder() / f"checks-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _fields(identity: DeviceIdentity) -> dict[str, object]:
    return {**asdict(identity), "versions": dict(identity.versions)}


@cache
def _package_digest() -> str:
    """Return a digest of all that decides the right answers: the files of this package, and the host's libraries.

    The libraries of the device are part of its identity.
    """
    digest = hashlib.sha256(f"Python {sys.version}, NumPy {np.__version__}, numcodecs {numcodecs.__version__}".encode())
    root = Path(str(resources.files("xarray_gpuzarr")))
    for file in sorted(path for path in root.rglob("*") if path.suffix in _SOURCE_SUFFIXES):
        digest.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
