"""Damaged chunks, each in a process of its own: one may take its GPU with it.

Two questions for every codec and every kind of damage. *nvCOMP alone*: what it says of such a stream between two good
ones, and whether the process can go on; whatever the answer, it is no failure. *a read*: the engine has to give an
error that names the chunk, or the values that the host gives, and the process has to go on.

``python -m xarray_gpuzarr.machine.diagnosis.damage nvcomp|read CODEC DAMAGE`` is such a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import zarr

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.nvcomp import Format
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.machine.diagnosis.device import DeviceReads, current_device
from xarray_gpuzarr.machine.diagnosis.report import Section
from xarray_gpuzarr.machine.diagnosis.resident import FORMATS, Workspace, resident_streams
from xarray_gpuzarr.machine.diagnosis.samples import WRITERS, Values, on_host, series, write
from xarray_gpuzarr.read import read_array

NATIVE_CODECS = (*FORMATS, "snappy")
CODECS = tuple(WRITERS)
DAMAGES = ("none", "truncated", "flipped", "header", "empty", "noise")
_PART = 16_384
"""Elements of a chunk."""
_AT_ONCE = 3
_CHILD_SECONDS = 90

RunChild = Callable[[Sequence[str]], str]
"""Runs this module as a process and returns what it printed; raises if it did not end well."""


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
    encoded = WRITERS[codec].encode(values)
    return encoded[head : len(encoded) - tail], fmt


def ask_engine(api: DeviceApi, codec: str, damage: str) -> dict[str, Any]:
    """Read a shard with one damaged chunk, then another array that has none."""
    values = series(4 * _PART)
    encoded = [WRITERS[codec].encode(chunk) for chunk in values.reshape(4, _PART)]
    with tempfile.TemporaryDirectory(prefix="gpuzarr-doctor-") as folder:
        bad = write(Path(folder, "bad"), codec, _PART, [encoded[0], damaged(encoded[1], damage), *encoded[2:]])
        good = write(Path(folder, "good"), codec, _PART, encoded)
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


def main(arguments: Sequence[str]) -> int:
    """Answer one question on standard output."""
    what, codec, damage, *device = arguments
    sys.stdout.write(json.dumps(ASK[what](current_device(*device), codec, damage)) + "\n")
    return 0


# ---- in the parent


def run_child(arguments: Sequence[str]) -> str:
    """Run a child; raise `RuntimeError` with its last words if it does not end well."""
    command = [sys.executable, "-m", "xarray_gpuzarr.machine.diagnosis.damage", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False)  # noqa: S603  # our own
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a child said."""

    what: str
    codec: str
    damage: str
    said: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{'nvCOMP alone' if self.what == 'nvcomp' else 'a read'}, {self.codec}, {self.damage}"

    @property
    def text(self) -> str:
        """What it said, in a line."""
        if self.what == "read" and "ended" not in self.said:
            return f"{self.said['said']}{'' if self.said['goes on'] else '; THE PROCESS DID NOT GO ON'}"
        return ", ".join(f"{key} {json.dumps(value)}" for key, value in self.said.items())

    @property
    def is_wrong(self) -> bool:
        """Whether a read gave neither right values nor the error that is due, or the process did not go on."""
        if self.what == "nvcomp":
            return False
        if "ended" in self.said or not self.said["goes on"] or "WRONG" in self.said["said"]:
            return True
        return self.damage == "none" and self.said["said"] != "right values"


def damage_section(child: RunChild = run_child, device: str = "cuda") -> Section:
    """Ask both questions of a device, for every codec and damage; children run a few at a time."""
    asked = [("nvcomp", *pair) for pair in product(NATIVE_CODECS, DAMAGES)]
    asked += [("read", *pair) for pair in product(CODECS, DAMAGES)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda question: _answer((*question, device), child), asked))
    return Section(
        name="damage",
        title="What does damaged data do?",
        rows=[(answer.name, answer.text) for answer in answers],
        notes=["Of nvCOMP alone, no answer is a failure: no read sends it such streams unchecked."],
        failures=[f"{answer.name}: {answer.text}" for answer in answers if answer.is_wrong],
        facts={answer.name: answer.said for answer in answers},
    )


def _answer(question: tuple[str, str, str, str], child: RunChild) -> Answer:
    what, codec, damage, _ = question
    try:
        said = json.loads(child(question))
    except (RuntimeError, ValueError, subprocess.SubprocessError, OSError) as error:
        said = {"ended": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    return Answer(what=what, codec=codec, damage=damage, said=said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
