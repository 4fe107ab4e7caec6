"""NVIDIA's runtime compiler, from its wheel: it needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from helpers.every_pair import FULL
from helpers.kernels.on_host import kept, unfinished

WHEEL = "nvidia-cuda-nvrtc"


class CompileError(AssertionError):
    """The compiler refused a program; carries its log."""


@functools.cache
def library() -> Any:
    """Return the compiler's shared library, or None if the wheel is not installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    found = [f for f in files if f.name.startswith("libnvrtc.so")]
    return ctypes.CDLL(str(found[0].locate())) if found else None


def architectures() -> list[int]:
    """Return the architectures that the compiler makes code for, such as 75 and 90; none without one."""
    if library() is None:
        return []
    n = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(n)))
    found = (ctypes.c_int * n.value)()
    _check(library().nvrtcGetSupportedArchs(found))
    return list(found)


def generations() -> list[int]:
    """Return the first architecture of each generation from Turing on; usually three of them."""
    first = {arch // 10: arch for arch in reversed(architectures()) if arch >= 75}
    found = sorted(first.values())
    return found if FULL else sorted({found[i * (len(found) - 1) // 2] for i in range(3) if found})


def compile_ptx(source: str, options: Sequence[str]) -> str:
    """Return the PTX of a program."""
    return _compiled(source, options, "PTX").rstrip(b"\0").decode()


def compile_cubin(source: str, options: Sequence[str]) -> bytes:
    """Return the machine code of a program, assembled as a driver would."""
    return _compiled(source, options, "CUBIN")


def _compiled(source: str, options: Sequence[str], kind: str) -> bytes:
    """Return what is kept of an earlier session, or compile."""

    def write(result: Path) -> None:
        made = unfinished(result)
        made.write_bytes(_compile(source, options, kind))
        made.replace(result)

    return kept(f"kernel.{kind.lower()}", [metadata.version(WHEEL), *options, source], write).read_bytes()


def _compile(source: str, options: Sequence[str], kind: str) -> bytes:
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = _text(program, "ProgramLog")
        # Warnings that the compiler has no error for are in the log only.
        if status or log.strip(b"\0\n "):
            raise CompileError(f"{' '.join(options)}\n{log.decode()}")
        return _text(program, kind)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    nbytes = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(nbytes)))
    text = ctypes.create_string_buffer(nbytes.value)
    _check(getattr(library(), f"nvrtcGet{what}")(program, text))
    return text.raw


def _check(status: int) -> None:
    assert status == 0, f"NVRTC status {status}"
