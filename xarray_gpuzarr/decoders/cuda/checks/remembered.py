"""Outcomes of self-checks, kept in the user's cache folder for one GPU, driver, and set of library versions.

They belong to the code that made them: with any other file of this package, checks run anew.

A file that cannot be read, or written, is as good as none: checks then run anew.
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
    """Return ``XARRAY_GPUZARR_CACHE_DIR``, else ``xarray-gpuzarr`` in the user's caches; the folder may not exist."""
    if setting := os.environ.get("XARRAY_GPUZARR_CACHE_DIR"):
        return Path(setting)
    # XDG Base Directory Specification 0.8
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # without a home, too
    return Path(caches) / "xarray-gpuzarr"


_DECIDING = {".py", ".c", ".h", ".so", ".cu", ".cuh", ".json"}
"""Files that decide what a device is asked, and what the right answer is."""

Outcomes = Mapping[str, str]
"""Finding of each check, by its name; empty if it has passed."""


def load(identity: DeviceIdentity) -> Outcomes:
    """Return what is remembered of a device."""
    return _read(_path(identity))[1]


def save(identity: DeviceIdentity, outcomes: Outcomes) -> None:
    """Remember outcomes, beside those that other processes have found meanwhile."""
    path = _path(identity)
    document = {"made of": _made_of(), "identity": _fields(identity), "checks": {**_read(path)[1], **outcomes}}
    beside = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(document, indent=1) + "\n")
        beside.replace(path)
        _in_folder.cache_clear()  # the folder's clock may be coarse
    except OSError:
        with suppress(OSError):
            beside.unlink()


def forget(identity: DeviceIdentity) -> None:
    """Remember nothing of a device."""
    with suppress(OSError):
        _path(identity).unlink()


def of_this_package() -> Sequence[tuple[DeviceIdentity, Outcomes]]:
    """Return each GPU of this machine that is remembered as it was last used, and what was found of it.

    It is asked for every variable: files are read once for each state of the folder.
    """
    folder = cache_folder()
    try:
        return _in_folder(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=4)
def _in_folder(folder: Path, _changed: int) -> Sequence[tuple[DeviceIdentity, Outcomes]]:
    newest: dict[str, tuple[float, DeviceIdentity, Outcomes]] = {}
    with suppress(OSError):
        for path in folder.glob("checks-*.json"):
            identity, outcomes = _read(path)
            changed = path.stat().st_mtime
            if identity is not None and changed > newest.get(identity.uuid, (0.0,))[0]:
                newest[identity.uuid] = changed, identity, outcomes
    return tuple((identity, outcomes) for _, identity, outcomes in newest.values())


def _read(path: Path) -> tuple[DeviceIdentity | None, Outcomes]:
    """Return what a file is about, and the outcomes in it; nothing if other code has made them."""
    try:
        document = json.loads(path.read_text()) if path.is_file() else {}
        checks, fields = document["checks"], document["identity"]
        identity = DeviceIdentity(**fields)
        texts = [*checks.values(), *fields["versions"].values(), *(v for k, v in fields.items() if k != "versions")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, {}
    if document.get("made of") != _made_of() or not all(isinstance(text, str) for text in texts):
        return None, {}
    return identity, checks


def _path(identity: DeviceIdentity) -> Path:
    text = json.dumps([_fields(identity), _made_of()], sort_keys=True)
    return cache_folder() / f"checks-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _fields(identity: DeviceIdentity) -> dict[str, object]:
    return {**asdict(identity), "versions": dict(identity.versions)}


@cache
def _made_of() -> str:
    """Return what changes with all that decides an answer: this package's files, and the libraries that it calls.

    Those of the device are part of its identity.
    """
    digest = hashlib.sha256(f"Python {sys.version}, NumPy {np.__version__}, numcodecs {numcodecs.__version__}".encode())
    root = Path(str(resources.files("xarray_gpuzarr")))
    for file in sorted(path for path in root.rglob("*") if path.suffix in _DECIDING):
        digest.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
