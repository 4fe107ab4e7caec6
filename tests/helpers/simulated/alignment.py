"""Kernels on the host that fail where a GPU would: at results that are not aligned to what is written at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from helpers.kernels import on_host
from xarray_gpuzarr.cuda.api import Kernel

_OUT_AT = 8 * 8
"""Where ``struct Target`` of ``scatter.cu`` and ``points.cu`` has the address of the result: behind ``struct Cast``."""


def launch(kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int]) -> None:
    """Run a kernel, once its result is known to be aligned: x86 would not mind."""
    if kernel.name in {"scatter", "points"}:
        out = ctypes.c_uint64.from_address(args[0] + _OUT_AT).value
        nbytes = int(dict(kernel.defines)["RESULT"][1:])
        assert out % nbytes == 0, f"{kernel.name}: elements of {nbytes} bytes are written from {out:#x} on"
    on_host.launch(kernel, n_blocks, n_threads, args)
