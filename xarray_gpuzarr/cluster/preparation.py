"""Prepares a process for reading on its GPU, so that no read has to wait for that, and undoes it afterwards.

Several workers may live in one process: the first prepares it, the last one to leave cleans up. Called by `worker`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, cast

from xarray_gpuzarr.cuda.api import Undo
from xarray_gpuzarr.cuda.configuration import configure, options_in_force
from xarray_gpuzarr.decoders.choice import decoder_for, usable_device
from xarray_gpuzarr.decoders.protocol import Device, PreparedDecoder


class Preparation:
    """Changes that were made for the workers of this process, and are undone when the last one leaves."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with no users; for a process that was forked off, whose parent undoes what it did."""
        self._lock = threading.Lock()
        self._n_users = 0
        self._undo: list[Undo] = []

    def enter(self, *, device: str, options: Mapping[str, Any]) -> Device:
        """Prepare this process for one more user; return the device that it reads to.

        Arguments as for `GpuZarrPlugin`. Whatever is raised, nothing is left behind.
        """
        resolved = usable_device(device)
        with self._lock:
            if self._n_users == 0:
                try:
                    self._prepare(resolved, options)
                except BaseException:
                    self._take_back()
                    raise
            self._n_users += 1
        return resolved

    def leave(self) -> None:
        """Let one user go; behind the last one, give everything back, once the reads that are under way have ended."""
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                self._take_back()

    def prepare_threads(self, executor: Executor, n_threads: int, device: Device) -> None:
        """Take the streams and pinned memory that reads of an executor's threads use."""
        if not isinstance(executor, ProcessPoolExecutor):  # its processes are not this one
            _cuda_decoder(device).prepare_threads(n_threads)

    def _prepare(self, device: Device, options: Mapping[str, Any]) -> None:
        if options:
            before = options_in_force()
            configure(**options)
            self._undo.append(lambda: cast("None", configure(**before)))
        if device != "host":
            decoder = _cuda_decoder(device)
            self._undo.append(_forget_devices)
            self._undo.append(decoder.prepare())
            self._undo.append(decoder.close)

    def _take_back(self) -> None:
        """Undo in reverse: workspaces are idle and gone before the pool is, the pool before the device."""
        while self._undo:
            self._undo.pop()()


def _cuda_decoder(device: Device) -> PreparedDecoder:
    return cast("PreparedDecoder", decoder_for(device))


def _forget_devices() -> None:
    """Drop what is kept for devices, private pools among it; arrays that live keep their memory."""
    device = sys.modules.get("xarray_gpuzarr.cuda.device")  # absent without CuPy, incomplete while it is imported
    forget = getattr(device, "forget_devices", None)
    if forget is not None:
        forget()


preparation = Preparation()

os.register_at_fork(after_in_child=preparation.restart)
