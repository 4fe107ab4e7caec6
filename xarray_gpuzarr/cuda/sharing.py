"""One pool for reads and for what is computed from them: RMM's current resource, and CuPy allocating through RMM.

The only room that changes process-wide state, and it can change it back. Called by `device`.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import rmm
from rmm.allocators.cupy import rmm_cupy_allocator

from xarray_gpuzarr.cuda.api import Install, Undo
from xarray_gpuzarr.cuda.rmm_memory import RmmMemory, is_plain


def share_memory(index: int, memory: RmmMemory, install: Install) -> Undo:
    """Let reads, RMM and CuPy use one pool.

    Parameters
    ----------
    index : int
        Number of the device.
    memory : RmmMemory
        Where reads get their memory from.
    install : "always", "if plain" or "never"
        When to make that RMM's current resource. CuPy is made to allocate through RMM unless RMM's current resource
        is then a plain one, which is slower than CuPy's own pool.

    Returns
    -------
    callable
        Takes back what was changed here and not since; arrays that live keep their memory.
    """
    undone: list[Callable[[], None]] = []
    current = rmm.mr.get_per_device_resource(index)
    if install == "always" or (install == "if plain" and is_plain(current)):
        undone += _install(index, current, memory.resource())
        current = rmm.mr.get_per_device_resource(index)
    if install == "always" or not is_plain(current):
        undone += _allocate_through_rmm()

    def undo() -> None:
        while undone:
            undone.pop()()

    return undo


def _install(index: int, current: object, resource: object) -> list[Callable[[], None]]:
    if resource is current:
        return []
    rmm.mr.set_per_device_resource(index, resource)

    def take_back() -> None:
        if rmm.mr.get_per_device_resource(index) is resource:
            rmm.mr.set_per_device_resource(index, current)

    return [take_back]


def _allocate_through_rmm() -> list[Callable[[], None]]:
    before = cupy.cuda.get_allocator()
    if before is rmm_cupy_allocator:
        return []
    cupy.cuda.set_allocator(rmm_cupy_allocator)

    def take_back() -> None:
        if cupy.cuda.get_allocator() is rmm_cupy_allocator:
            cupy.cuda.set_allocator(before)

    return [take_back]
