"""The machine code of a kernel: compiled by NVRTC, disassembled, cut into basic blocks. It is read, never run.

References
----------
CUDA Binary Utilities, "nvdisasm" and the instruction sets.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers.kernels import nvrtc  # type: ignore[import-not-found]

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.launch import COMPILE_OPTIONS, kernel_source

OPTIONS = (*COMPILE_OPTIONS, "-ftz=true", "--device-as-default-execution-space", "-lineinfo")
"""With what CuPy adds, and lines for every instruction, which change no code."""

HOW_TO_INSTALL = "pip install 'xarray-gpuzarr[dev,kernel-counts]': NVIDIA's compiler, its disassembler, and scipy"

_WIDTH = re.compile(r"\.(U?8|S8|U?16|S16|32|64|128)\b")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.MULTILINE)
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_SOURCE = re.compile(r'//## File "([^"]*)", line (\d+)(.*)')
_LOADS, _STORES = ("LDG", "LD", "LDS"), ("STG", "ST", "STS")


class MissingToolError(Exception):
    """A program or package is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction."""

    address: int
    predicate: str
    """Such as ``@!P0``; empty if it is always carried out."""
    opcode: str
    """With its modifiers."""
    operands: str
    lines: tuple[tuple[str, int], ...]
    """Source file and line; where functions are inlined, the innermost first, then the lines of the calls."""

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def line(self) -> tuple[str, int]:
        """The innermost source line."""
        return self.lines[0]

    @property
    def is_load(self) -> bool:
        """Whether it reads memory that threads share."""
        return self.name in _LOADS

    @property
    def is_store(self) -> bool:
        """Whether it writes memory that threads share."""
        return self.name in _STORES

    @property
    def nbytes(self) -> int:
        """Bytes that a thread loads or stores."""
        found = _WIDTH.search(self.opcode)
        return int(found[1].lstrip("US")) // 8 if found else 4

    @property
    def targets(self) -> list[str]:
        """Labels that it names."""
        return re.findall(r"\.L_\w+|\$[$\w]+", self.operands)


@dataclass(slots=True, kw_only=True)
class Block:
    """Instructions that are always carried out one after another."""

    instructions: list[Instruction]
    followers: list[int] = field(default_factory=list)
    """Numbers of the blocks that may come next; none if the thread ends."""
    may_end: bool = False
    """Whether a thread may end here."""


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """A kernel as one architecture has it."""

    kernel: Kernel
    arch: int
    blocks: list[Block]
    """The first one is the entry."""
    registers: int
    """Of a thread."""
    shared_nbytes: int
    """Of a block of threads."""
    spills: int
    """Loads and stores of a thread's own memory."""

    @property
    def n_instructions(self) -> int:
        """Instructions in all."""
        return sum(len(b.instructions) for b in self.blocks)


def read_machine_code(kernel: Kernel, arch: int) -> MachineCode:
    """Compile a kernel for an architecture such as 90, and take its code apart."""
    if nvrtc.library() is None:
        raise MissingToolError(f"NVIDIA's runtime compiler is not installed: {HOW_TO_INSTALL}")
    cubin = nvrtc.compile_cubin(kernel_source(kernel), [*OPTIONS, f"-arch=sm_{arch}"])
    text = _disassemble(cubin)
    code = text.partition(f".section\t.text.{kernel.name},")[2].partition("//------")[0]
    instructions, labels = parse_listing(code)
    return MachineCode(
        kernel=kernel,
        arch=arch,
        blocks=find_blocks(instructions, labels),
        registers=_registers(text, kernel.name),
        shared_nbytes=_shared_nbytes(text, kernel.name),
        spills=sum(i.name in ("LDL", "STL") for i in instructions),
    )


def disassembler() -> Path:
    """Return NVIDIA's disassembler, from its wheel."""
    roots = [Path(p) for p in (sysconfig.get_path("purelib"), *__import__("sys").path)]
    found = [p for root in roots for p in sorted(root.glob("nvidia/*/bin/nvdisasm"))]
    if not found:
        raise MissingToolError(f"NVIDIA's disassembler is not installed: {HOW_TO_INSTALL}")
    return found[0]


def parse_listing(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a listing of nvdisasm, and the address that each label stands for.

    The padding behind a kernel is left out.
    """
    instructions: list[Instruction] = []
    waiting: list[str] = []
    labels: dict[str, int] = {}
    lines, is_chain = (("", 0),), False
    for row in text.splitlines():
        if source := _SOURCE.search(row):
            here = (Path(source[1]).name, int(source[2]))
            lines = (*lines, here) if is_chain else (here,)
            # The line of a call is told here, and once more with its own file.
            is_chain = "inlined at" in source[3]
        elif label := _LABEL.match(row):
            waiting.append(label[1])
        elif found := _INSTRUCTION.match(row):
            address, predicate, opcode, operands = found.groups()
            labels |= dict.fromkeys(waiting, int(address, 16))
            waiting = []
            instruction = Instruction(
                address=int(address, 16), predicate=predicate or "", opcode=opcode, operands=operands, lines=lines
            )
            instructions.append(instruction)
    return list(_without_padding(instructions, labels)), labels


def find_blocks(instructions: list[Instruction], labels: dict[str, int]) -> list[Block]:
    """Cut instructions into basic blocks and join these by the branches between them."""
    starts = {instructions[0].address, *labels.values()}
    for before, after in itertools.pairwise(instructions):
        if before.name in _LEAVING:
            starts.add(after.address)
    blocks: list[Block] = []
    number: dict[int, int] = {}
    for instruction in instructions:
        if instruction.address in starts:
            number[instruction.address] = len(blocks)
            blocks.append(Block(instructions=[]))
        blocks[-1].instructions.append(instruction)
    _join(blocks, {label: number[at] for label, at in labels.items() if at in number})
    return blocks


_LEAVING = ("BRA", "EXIT", "CALL", "RET", "BRX", "JMP", "JMX", "BREAK", "KILL")


def _join(blocks: list[Block], block_of: dict[str, int]) -> None:
    calls: dict[int, list[int]] = defaultdict(list)
    for at, block in enumerate(blocks):
        last = block.instructions[-1]
        targets = [block_of[label] for label in last.targets if label in block_of]
        if last.name in ("BRA", "BRX", "JMP", "JMX"):
            block.followers = targets
        elif last.name == "CALL":
            block.followers = targets
            calls[targets[0]].append(at + 1)
        block.may_end = last.name in ("EXIT", "KILL")
        if (last.name not in _LEAVING or is_conditional(last) or last.name == "BREAK") and at + 1 < len(blocks):
            block.followers = [*block.followers, at + 1]
    # A subroutine returns to whoever called it: counts of its callers tell how often.
    for entry, returns in calls.items():
        for at in _reached(blocks, entry):
            if blocks[at].instructions[-1].name == "RET":
                blocks[at].followers = returns


def is_conditional(branch: Instruction) -> bool:
    """Whether a thread may go on behind a branch."""
    return bool(branch.predicate) or ".DIV" in branch.opcode or bool(re.match(r"!?U?P\d", branch.operands))


def _reached(blocks: list[Block], entry: int) -> set[int]:
    found, queue = {entry}, [entry]
    while queue:
        for follower in blocks[queue.pop()].followers:
            if follower not in found:
                found.add(follower)
                queue.append(follower)
    return found


def _without_padding(instructions: list[Instruction], labels: dict[str, int]) -> Iterator[Instruction]:
    """Drop the branch to itself, and what follows it."""
    for instruction in instructions:
        here = [label for label, at in labels.items() if at == instruction.address]
        if instruction.name == "BRA" and set(instruction.targets) & set(here) and not instruction.predicate:
            return
        yield instruction


def _disassemble(cubin: bytes) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run(
            [str(disassembler()), "-gi", str(path)], check=True, capture_output=True, text=True
        ).stdout


def _registers(text: str, name: str) -> int:
    found = re.search(rf"EIATTR_REGCOUNT\n(?:.*\n)*?.*index@\({name}\)\n.*\.word\s+(0x[0-9a-f]+)", text)
    if found is None:
        raise ValueError(f"the listing of {name} does not tell its registers")
    return int(found[1], 16)


def _shared_nbytes(text: str, name: str) -> int:
    found = re.search(rf"^\.nv\.shared\.{name}:\n\s*\.zero\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
