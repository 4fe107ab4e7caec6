"""What a multiprocessor can do in a clock, and what part of the rate of a copy that leaves to a kernel.

References
----------
CUDA C++ Programming Guide, "Arithmetic Instructions" (results per clock and multiprocessor) and "Compute Capabilities";
Hopper tuning guide. Copy: 3.35 TB/s of memory, of which a copy reaches some 90 %, over 132 multiprocessors at 1.7 GHz.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COPY_NBYTES = 15.0
"""Bytes, read and written together, that a copy moves in a clock and multiprocessor of an H100."""

ISSUE = 128.0
"""Instructions of single threads that a multiprocessor starts in a clock."""


@dataclass(frozen=True, kw_only=True)
class Multiprocessor:
    """Limits of one architecture."""

    registers: int
    threads: int
    blocks: int
    shared_nbytes: int
    pipes: Mapping[str, float]
    """Instructions of single threads in a clock, of those that only a part of the units carries out."""


_COMMON = {"integer": 64.0, "memory": 32.0, "special": 16.0}
MULTIPROCESSORS = {
    90: Multiprocessor(
        registers=65536, threads=2048, blocks=32, shared_nbytes=228 << 10, pipes=_COMMON | {"double": 64.0}
    ),
    120: Multiprocessor(
        registers=65536, threads=1536, blocks=24, shared_nbytes=100 << 10, pipes=_COMMON | {"double": 2.0}
    ),
}

_INTEGER = [
    "BMSK",
    "FMNMX",
    "FSEL",
    "FSETP",
    "I2FP",
    "IABS",
    "IADD",
    "IADD3",
    "IMNMX",
    "ISETP",
    "LEA",
    "LOP",
    "LOP3",
    "P2R",
    "PLOP3",
    "PRMT",
    "R2P",
    "SEL",
    "SGXT",
    "SHF",
    "VIADD",
    "VIADDMNMX",
    "VIMNMX",
]
_SPECIAL = ["BREV", "F2F", "F2I", "FLO", "FRND", "I2F", "I2I", "MUFU", "POPC"]
_MEMORY = [
    "ATOM",
    "ATOMG",
    "ATOMS",
    "LD",
    "LDG",
    "LDL",
    "LDS",
    "LDSM",
    "RED",
    "REDG",
    "SHFL",
    "ST",
    "STG",
    "STL",
    "STS",
]
_DOUBLE = ["DADD", "DFMA", "DMNMX", "DMUL", "DSETP"]
_PIPE = {
    **dict.fromkeys(_INTEGER, "integer"),
    **dict.fromkeys(_SPECIAL, "special"),
    **dict.fromkeys(_MEMORY, "memory"),
    **dict.fromkeys(_DOUBLE, "double"),
}


def pipe_of(name: str, opcode: str) -> str | None:
    """Return the pipe that an instruction may have to queue for."""
    if name in _SPECIAL and "F64" in opcode:
        return "double"
    return _PIPE.get(name)


def occupancy(arch: int, *, registers: int, shared_nbytes: int, n_threads: int) -> float:
    """Return the part of a multiprocessor's threads that blocks of a kernel fill.

    Registers are handed out to warps, by 256; blocks of threads take 1 KiB of shared memory besides their own, which
    `shared_nbytes` counts.
    """
    limits = MULTIPROCESSORS[arch]
    warps = -(-n_threads // 32)
    by_registers = limits.registers // (-(-registers * 32 // 256) * 256) // warps
    by_shared = limits.shared_nbytes // max(shared_nbytes, 1024)
    blocks = min(by_registers, by_shared, limits.blocks, limits.threads // (warps * 32))
    return blocks * warps * 32 / limits.threads


def budget(nbytes: float) -> float:
    """Return the instructions that a copy of so many bytes, read and written, leaves time for."""
    return ISSUE / COPY_NBYTES * nbytes


def share_of_copy(arch: int, nbytes: float, instructions: float, by_pipe: Mapping[str, float]) -> tuple[float, str]:
    """Return the part of the rate of a copy that is left, at most 1, and what bounds it.

    Parameters
    ----------
    arch : int
    nbytes : float
        Read and written for each element.
    instructions : float
        Carried out for each element.
    by_pipe : mapping
        Of these, how many queue for each pipe.
    """
    copy = nbytes / COPY_NBYTES
    pipes = MULTIPROCESSORS[arch].pipes
    clocks = {"memory": copy, "instructions": instructions / ISSUE} | {
        f"{pipe} units": n / pipes[pipe] for pipe, n in by_pipe.items()
    }
    slowest = max(clocks, key=lambda what: clocks[what])
    return min(1.0, copy / clocks[slowest]), slowest
