"""``python -m benchmarks.gpu.faults``: damaged chunks, each in a process of its own: one may take its GPU with it.

Two questions for every codec and every kind of damage. *nvCOMP alone*: what it says of such a stream between two good
ones, and whether the process can go on; whatever the answer, it is no failure. *a read*: the engine has to give an
error that names the chunk, or the values that the host gives, and the process has to go on.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np

from benchmarks.compressors import Compressor
from benchmarks.gpu.ceilings import FORMATS, resident_streams
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu, NativeGpu
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.stores import Stored
from benchmarks.measure import Case, Contestant, Ready, WrongValuesError
from benchmarks.stores import write_object, write_tiled
from benchmarks.workloads import SERIES, Workload
from xarray_gpuzarr import GpuZarrError, read_array

NATIVE_CODECS = ("zstd 3", "gzip 5", "lz4", "zlib 5", "snappy")
CODECS = ("zstd 3", "gzip 5", "lz4", "zlib 5", *(f"blosc {c} 5 shuffle" for c in ("blosclz", "lz4", "zstd", "zlib")))
DAMAGES = ("none", "truncated", "flipped", "header", "empty", "noise")
_PART = 16_384
_AT_ONCE = 3
_CHILD_SECONDS = 90
_ROOT = Path(__file__).parents[2]

RunChild = Callable[[Sequence[str]], str]
"""Runs ``python -m benchmarks.gpu.faults --child ...`` and returns what it printed; raises if it did not end well."""


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


def ask_nvcomp(gpu: Gpu, codec: str, damage: str) -> dict[str, Any]:
    """Decode a good stream, a damaged one and a good one in one batch, past all checks; then only good ones."""
    values = np.tile(np.arange(251, dtype=np.float32), -(-_PART // 251))[:_PART]
    good, fmt = _stream(codec, values)
    batch = resident_streams(gpu, fmt, [good, damaged(good, damage), good], values.nbytes)
    statuses, actual = batch.outcome()
    right = [batch.content(i) == values.tobytes() for i in range(3)]
    again = resident_streams(gpu, fmt, [good, good], values.nbytes)
    alive = again.outcome()[0] == [0, 0] and again.content() == values.tobytes()
    return {"statuses": statuses, "lengths": actual, "right": right, "goes on": alive}


def _stream(codec: str, values: np.ndarray[Any, Any]) -> tuple[bytes, Any]:
    if codec == "snappy":
        return bytes(imagecodecs.snappy_encode(values.tobytes(), None)), "snappy"
    fmt, head, tail = FORMATS[Compressor.from_text(codec).family]
    encoded = Compressor.from_text(codec).encode(values)
    return encoded[head : len(encoded) - tail], fmt


def ask_engine(gpu: Gpu, codec: str, damage: str) -> dict[str, Any]:
    """Read a shard with one damaged chunk, then another array that has none."""
    workload = replace(
        SERIES, name="s", shape=(8 * _PART,), chunks=(_PART,), shards=(4 * _PART,), codec=codec, summary=""
    )
    with tempfile.TemporaryDirectory() as folder:
        bad, good = (_written(workload, Path(folder) / name, d) for name, d in (("bad", damage), ("good", "none")))
        expected = gpu.put(workload.values())
        said = _read(gpu, bad, expected)
        return {"said": said, "goes on": _read(gpu, good, expected) == "right values"}


def _written(workload: Workload, path: Path, damage: str) -> Stored:
    encoded = write_tiled(workload, path)
    stored = Stored(workload, path, encoded)
    write_object(workload, path, [*encoded[:1], damaged(encoded[1], damage), *encoded[2:]], (0,))
    return stored


def _read(gpu: Gpu, stored: Stored, expected: Any) -> str:
    try:
        found = read_array(open_array(stored), device=gpu.device)
    except GpuZarrError as error:
        return f"{type(error).__name__}: {error.headline}"
    if gpu.same(found, expected):
        return "right values"
    return "values as the host decodes them" if _as_host(gpu, stored, found) else "WRONG VALUES"


def _as_host(gpu: Gpu, stored: Stored, found: Any) -> bool:
    """Say whether the host gives the same values: damage to literals shows nowhere where nothing is checksummed."""
    try:
        return gpu.same(found, gpu.put(read_array(open_array(stored), device="host")))
    except GpuZarrError:
        return False


ASK = {"nvcomp": ask_nvcomp, "read": ask_engine}


# ---- in the parent


def run_child(arguments: Sequence[str]) -> str:
    """Run a child; raise `RuntimeError` with its last words if it does not end well."""
    command = [sys.executable, "-m", "benchmarks.gpu.faults", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False, cwd=_ROOT)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One child."""

    what: str
    codec: str
    damage: str

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{self.codec}, {self.damage}"

    def arguments(self) -> list[str]:
        """Return what the child is told."""
        return ["--child", self.what, self.codec, self.damage]


def all_cases(child: RunChild) -> list[Case]:
    """Return both questions, for every codec and damage; children run a few at a time."""
    asked = {
        "nvCOMP alone": [Question(what="nvcomp", codec=c, damage=d) for c, d in product(NATIVE_CODECS, DAMAGES)],
        "a read": [Question(what="read", codec=c, damage=d) for c, d in product(CODECS, DAMAGES)],
    }
    return [
        Case(
            name=name,
            summary="of damaged chunks, each in a process of its own",
            contestants=functools.partial(_contestants, questions, child),
        )
        for name, questions in asked.items()
    ]


def _contestants(questions: Sequence[Question], child: RunChild) -> list[Contestant]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = [(question, pool.submit(child, question.arguments())) for question in questions]
    return [
        Contestant(name=question.name, nbytes=0, prepare=functools.partial(_answered, question, answer))
        for question, answer in answers
    ]


def _answered(question: Question, answer: Future[str]) -> Ready:
    """Return what a child said; of nvCOMP alone, also that it did not come back."""
    try:
        said = json.loads(answer.result())
    except Exception as error:
        if question.what == "read":
            raise
        said = {"ended": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    if question.what == "read":
        _check(question, said)
    return Ready(measure=dict, facts={key: _text(value) for key, value in said.items()})


def _check(question: Question, said: dict[str, Any]) -> None:
    """Raise unless a read gave right values or an error, as the damage asks for, and the process went on."""
    right = said["said"] == "right values"
    if not said["goes on"] or "WRONG" in said["said"] or (question.damage == "none" and not right):
        raise WrongValuesError(f"{said['said']}; goes on: {said['goes on']}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = NativeGpu, child: RunChild = run_child) -> int:
    """Ask everything, or, with ``--child``, one thing; return 1 if a read failed, 2 if there is no GPU, else 0."""
    command = Command(
        module="benchmarks.gpu.faults",
        kind="faults",
        description="Damaged chunks, each in a process of its own.",
        seconds=240.0,
        rounds=1,
        cases=lambda _gpu, _folder, _scale: all_cases(child),
    )
    parser = command.parser()
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "CODEC", "DAMAGE"), help="one question, in this process")
    options = parser.parse_args(arguments)
    if options.child is None:
        return exit_status(command.run(options, make_gpu))
    what, codec, damage = options.child
    print(json.dumps(ASK[what](make_gpu(), codec, damage)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
