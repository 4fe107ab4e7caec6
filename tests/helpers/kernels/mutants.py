"""Kernels with one mistake each, which `strict_kernels` must show: ``python -m helpers.kernels.mutants CHECK...``.

Every barrier is left out, weakened, and met by half of the threads only; every instruction rounds in another way; half
of the blocks do the work of others. The other mistakes are written down, by what is replaced; a rewrite that has no
such text any more needs others.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from helpers.kernels.on_host import BuildError
from helpers.kernels.strict_cases import CHECKS, PARTS
from helpers.kernels.strict_kernels import KernelError, kernels_from, strictly

SEEDS = (0, 1)
SECONDS = 60
"""After which a mutant is taken for one that never ends."""
MISUSED = ("race", "barrier", "undefined", "crash")
ANY = (*MISUSED, "value", "endless")
KERNELS = Path(str(resources.files("xarray_gpuzarr.cuda") / "kernels"))
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file."""

    file: str
    span: tuple[int, int]
    new: str
    """What stands there instead."""
    check: str
    """What must fail: of a kernel, or a part of it."""
    shown_by: tuple[str, ...]
    """Ways in which it may be shown; see `outcome`."""

    @property
    def kernel(self) -> str:
        """Of which a check must fail."""
        return "element_codec" if self.check in PARTS else self.check

    def __str__(self) -> str:
        text = (KERNELS / self.file).read_text()
        line = text.count("\n", 0, self.span[0]) + 1
        return f"{self.file}:{line}: {text[slice(*self.span)]} -> {' '.join(self.new.split()) or 'nothing'}"


# ---- written down: file, what is replaced, what stands there instead, check, how it is shown

WRITTEN = [
    ("checksum.cu", r"if \(threadIdx\.x == 0\) total\[0\] = total\[1\] = 0;", "", "checksum", "value"),
    ("checksum.cu", r"atomicXor\(total, (.*)\);", r"*total ^= \1;", "checksum", "race"),
    ("checksum.cu", r"atomicAdd\(total, (.*)\);", r"*total += \1;", "checksum", "race"),
    ("checksum.cu", r"atomicXor\(result, (.*)\);(?= *\n)", r"*result ^= \1;", "checksum", "race"),
    ("checksum.cu", r"if \(end <= 0\) return;", "if (end <= 0 || threadIdx.x == 7) return;", "checksum", "barrier"),
    ("numbers.cuh", r"if \(shift > From::width \+ 1\) return f2\{sign\};", "", "astype", "undefined"),
    ("numbers.cuh", r"if \(!is_nan\(bits<Bits>\(result\)\)\) return result;", "return result;", "points", "value"),
    ("numbers.cuh", r"if \(is_nan\(b\)\) return bits<f4>.*;", "", "astype", "value"),
    ("numbers.cuh", r"if \(is_nan\(b\)\) return bits<f8>.*;", "", "astype", "value"),
    ("numbers.cuh", r"high \| \(low != 0\)", "high", "scaled", "value"),
    ("element_codec.cu", r"if \(!holds\(to, value\)\) return false;", "", "rounded", "undefined"),
    ("dtypes.cuh", r"dtype\.nbytes == 8 \|\| ", "", "integers", "undefined"),
    ("element_codec.cu", r"\(\(u8\*\)flags\)\[row\] = 1;", "((u8*)flags)[row] += 1;", "rounded", "race"),
    ("delta.cu", r"\b(before \+ sum\[i\])", r"\1 + !threadIdx.x", "delta", "value"),
    ("float_delta.cu", r"if \(threadIdx\.x == 0\) \{", "if (threadIdx.x < 2) {", "float_delta", "race"),
    ("zstd_blocks.cu", r"\(\(u8\*\)refused\)\[row\] = 1;", "((u8*)refused)[0] += 1;", "zstd_blocks", "race"),
    ("move.cu", r"first \+ tile_nbytes < nbytes \? first \+ tile_nbytes", "first < nbytes ? first", "move", "value"),
]


def mutants() -> list[Mutant]:
    return [*_written(), *_halves(), *_barriers(), *_instructions()]


def stale() -> list[tuple[str, str]]:
    """Return what is written down and stands in no kernel any more: file and text."""
    return [(file, old) for file, old, *_ in WRITTEN if not re.search(old, (KERNELS / file).read_text())]


def _written() -> Iterator[Mutant]:
    for file, old, new, check, shown_by in WRITTEN:
        for found in [*re.finditer(old, (KERNELS / file).read_text())][:1]:
            yield Mutant(file=file, span=found.span(), new=found.expand(new), check=check, shown_by=(shown_by,))


def _halves() -> Iterator[Mutant]:
    new = "#undef blockIdx\n#define blockIdx (ShimIndex{shim_block_index() & ~1u})\n"
    for check in CHECKS:
        part = "astype" if check == "element_codec" else check
        yield Mutant(file=f"{check}.cu", span=(0, 0), new=new, check=part, shown_by=ANY)


def _barriers() -> Iterator[Mutant]:
    for file, barrier in _found(r"\b__sync(threads|warp)\([^()]*\)"):
        changed = ["((void)0)"]
        if barrier[1] == "threads":
            changed += ["__syncwarp()", "(threadIdx.x % 64 < 32 ? __syncthreads() : (void)0)"]
        for new in changed:
            check = _kernels_with(file)[0]
            yield Mutant(file=file, span=barrier.span(), new=new, check=check, shown_by=MISUSED)


def _instructions() -> Iterator[Mutant]:
    for file, found in _found(r'(?<=asm\(")(\w+)\.(rn)?(\.?f32|\.?f64)[.\w]*'):
        check = {"mul": "points", "cvt": "astype"}.get(found[1], "scaled")
        for new in ("rz", "rp") if found[2] else ():
            text = found[0].replace(".rn", f".{new}")
            yield Mutant(file=file, span=found.span(), new=text, check=check, shown_by=("value",))
        if "f32" in found[0]:
            text = re.sub(r"(?=\.f\d\d)", ".ftz", found[0], count=1)
            yield Mutant(file=file, span=found.span(), new=text, check=check, shown_by=("value",))


def _found(pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield what matches in all files, comments left out."""
    for path in sorted(KERNELS.glob("*.cu*")):
        code = re.sub(r"//.*", lambda comment: " " * len(comment[0]), path.read_text())
        for found in re.finditer(pattern, code):
            yield path.name, found


def _kernels_with(file: str) -> list[str]:
    """Return the kernels that include a file; the one that is named like it first."""

    def files_of(name: str) -> set[str]:
        included = _INCLUDE.findall((KERNELS / name).read_text())
        return {name}.union(*(files_of(i) for i in included))

    kernels = [name for name in CHECKS if file in files_of(f"{name}.cu")]
    return sorted(kernels, key=lambda name: (file != f"{name}.cu", name != "scatter"))


# ---- running them


def outcome(mutant: Mutant) -> str:
    """Return how a mutant is shown, or "survives"; run in a process of its own, which may crash or never end."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        os.write(write_end, _outcome(mutant).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        said = told.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "endless" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    return said or "broken"


def _outcome(mutant: Mutant) -> str:
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(shutil.copytree(KERNELS, Path(scratch) / "kernels"))
            text = (folder / mutant.file).read_text()
            (folder / mutant.file).write_text(text[: mutant.span[0]] + mutant.new + text[mutant.span[1] :])
            with kernels_from(folder.parent):
                for seed in SEEDS:
                    with strictly(seed):
                        (CHECKS | PARTS)[mutant.check]()
    except KernelError as error:
        first = str(error).split(maxsplit=1)[0].rstrip(":")
        return {"race": "race", "undefined": "undefined"}.get(first, "barrier" if "waits" in str(error) else str(error))
    except BuildError as error:
        return f"does not compile: {error}"
    except AssertionError:
        return "value"
    return "survives"


def main(checks: list[str]) -> None:
    """Say of some checks how mutants are shown, and which are not."""
    for mutant in (m for m in mutants() if m.kernel in checks):
        found = outcome(mutant)
        sys.stdout.write(f"{'shown' if found in mutant.shown_by else 'NOT SHOWN'}: {mutant}: {found}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
