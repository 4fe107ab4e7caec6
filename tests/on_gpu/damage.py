"""Damaged chunks, each in a process of its own: one may take its GPU with it.

``python -m on_gpu.damage`` asks nvCOMP alone, for every format and kind of damage: what it says of such a
stream between two good ones, and whether the process goes on. With ``nvcomp|read CODEC DAMAGE`` it is such a process;
``read`` reads with the engine, for `tests/on_gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import zarr

from benchmarks.gpu.resident import FORMATS, Workspace, resident_streams
from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.find_gpu import find_gpu
from xarray_gpuzarr.cuda.nvcomp_formats import Format
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.machine.diagnosis.rates import DeviceReads
from xarray_gpuzarr.machine.diagnosis.samples import COMPRESSORS, Values, on_host, series, write_shard
from xarray_gpuzarr.read import read_array

NATIVE_CODECS = (*FORMATS, "snappy")
CODECS = tuple(COMPRESSORS)
DAMAGES = ("none", "truncated", "flipped", "header", "empty", "noise")
_PART = 16_384
"""Elements of a chunk."""
_CHILD_SECONDS = 90


def damaged(stream: bytes, damage: str) -> bytes:
    """Return a stream with one kind of damage, the same every time."""
    rng = np.random.default_rng(7)
    changed = bytearray(stream)
    match damage:
        case "none":
            pass
        case "truncated":
            del changed[len(changed) // 2 :]
        case "flipped":
            for at in rng.integers(min(20, len(changed) // 2), len(changed), 20).tolist():
                changed[at] ^= int(rng.integers(1, 256))
        case "header":
            for at in range(4, min(12, len(changed))):
                changed[at] ^= 0xFF
        case "empty":
            del changed[:]
        case "noise":
            changed[:] = rng.bytes(len(changed))
        case _:
            raise ValueError(f"no damage is called {damage!r}")
    return bytes(changed)


# ---- in the child


def ask_nvcomp(api: DeviceApi, codec: str, damage: str) -> dict[str, Any]:
    """Decode a good stream, a damaged one and a good one in one batch, past all checks; then only good ones."""
    values = np.resize(np.arange(251, dtype=np.float32), _PART)
    good, fmt = _stream(codec, values)
    with api.activate(), closing(Workspace(api)) as space:
        batch = resident_streams(space, fmt, [good, damaged(good, damage), good], values.nbytes)
        statuses, actual = batch.outcome()
        right = [batch.content(i) == values.tobytes() for i in range(3)]
        again = resident_streams(space, fmt, [good, good], values.nbytes)
        alive = not again.what_is_wrong(values.tobytes())
    return {"statuses": statuses, "lengths": actual, "right": right, "goes on": alive}


def _stream(codec: str, values: Values) -> tuple[bytes, Format]:
    if codec == "snappy":
        return bytes(imagecodecs.snappy_encode(values.tobytes(), None)), "snappy"
    fmt, head, tail = FORMATS[codec]
    encoded = COMPRESSORS[codec].encode(values)
    return encoded[head : len(encoded) - tail], fmt


def ask_engine(api: DeviceApi, codec: str, damage: str) -> dict[str, Any]:
    """Read a shard with one damaged chunk, then another array that has none."""
    values = series(4 * _PART)
    encoded = [COMPRESSORS[codec].encode(chunk) for chunk in values.reshape(4, _PART)]
    with tempfile.TemporaryDirectory(prefix="gpuzarr-doctor-") as folder:
        bad = write_shard(Path(folder, "bad"), codec, _PART, [encoded[0], damaged(encoded[1], damage), *encoded[2:]])
        good = write_shard(Path(folder, "good"), codec, _PART, encoded)
        said = _read(api, bad, values)
        return {"said": said, "goes on": _read(api, good, values) == "right values"}


def _read(api: DeviceApi, array: zarr.Array[Any], expected: Values) -> str:
    try:
        found = on_host(DeviceReads(api).read(array))
    except GpuZarrError as error:
        return f"{type(error).__name__}: {error.headline}"
    if np.array_equal(found, expected):
        return "right values"
    return "values as the host decodes them" if _as_host(array, found) else "WRONG VALUES"


def _as_host(array: zarr.Array[Any], found: Values) -> bool:
    """Say whether the host gives the same values: damage to literals shows nowhere where nothing is checksummed."""
    try:
        return np.array_equal(found, read_array(array, device="host"), equal_nan=True)
    except GpuZarrError:
        return False


ASK = {"nvcomp": ask_nvcomp, "read": ask_engine}


def ended_or_said(what: str, codec: str, damage: str) -> dict[str, Any]:
    """Ask one question of the GPU, in a process of its own; say how that ended if it gave no answer."""
    command = [sys.executable, "-m", "on_gpu.damage", what, codec, damage]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # pytest has set paths for this process alone
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        return {"ended": str(error)}
    if done.returncode:
        return {"ended": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"}
    return dict(json.loads(done.stdout))


def main(arguments: Sequence[str]) -> int:
    """Answer one question on standard output, or ask nvCOMP all of them; whatever it says is no failure."""
    if arguments:
        what, codec, damage = arguments
        print(json.dumps(ASK[what](find_gpu(), codec, damage)))
        return 0
    for codec, damage in product(NATIVE_CODECS, DAMAGES):
        print(f"{codec}, {damage}: {json.dumps(ended_or_said('nvcomp', codec, damage))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
