"""What a process does once before it reads on its GPU, so that no read has to wait for it, and how it lets go of that.

Several workers may live in one process: the first prepares it, the last one to leave cleans up. Called by `worker`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from contextlib import suppress
from typing import Any, cast

from xarray_gpuzarr.cuda.api import Undo
from xarray_gpuzarr.decoders import Device, decoder_for, usable_device
from xarray_gpuzarr.decoders.protocol import PreparedDecoder
from xarray_gpuzarr.process.configuration import configure, options_in_force

_IDLE_SECONDS = 2.0
"""How long prepared threads wait for busy ones, which then prepare themselves when they first read."""


class Preparation:
    """What was done for the users of this process, and has to be undone."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with no users; for a process that was forked off, whose parent undoes what it did."""
        self._lock = threading.Lock()
        self._n_users = 0
        self._undo: list[Undo] = []

    def enter(self, *, device: str, pool: bool, options: Mapping[str, Any]) -> Device:
        """Prepare this process for one more user; return the device that it reads to.

        Parameters
        ----------
        device : "auto", "cuda" or "host"
        pool : bool
            Install a pool where RMM's current resource is a plain one.
        options : mapping
            Fields of `ResourceOptions` to set for this process.

        Raises
        ------
        DeviceUnavailableError, DeviceMemoryError, CudaError, OptionError
            Nothing is left behind then.
        """
        resolved = usable_device(device)
        with self._lock:
            if self._n_users == 0:
                try:
                    self._prepare(resolved, pool=pool, options=options)
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

    def warm_threads(self, executor: Executor, n_threads: int) -> None:
        """Let every idle thread of an executor take its streams and pinned memory.

        Raises
        ------
        DeviceMemoryError, CudaError
        """
        if isinstance(executor, ProcessPoolExecutor):  # its processes are not this one
            return
        decoder, together = _cuda_decoder(), threading.Barrier(n_threads)

        def warm() -> None:
            try:
                decoder.prepare_thread()
            finally:
                with suppress(threading.BrokenBarrierError):  # so that each runs on a thread of its own
                    together.wait(_IDLE_SECONDS)

        futures = [executor.submit(warm) for _ in range(n_threads)]
        done, waiting = wait(futures, 2 * _IDLE_SECONDS)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()

    def _prepare(self, device: Device, *, pool: bool, options: Mapping[str, Any]) -> None:
        if options:
            before = options_in_force()
            configure(**options)
            self._undo.append(lambda: cast("None", configure(**before)))
        if device == "cuda":
            decoder = _cuda_decoder()
            self._undo.append(_forget_devices)
            self._undo.append(decoder.prepare("if plain" if pool else "never"))
            self._undo.append(decoder.close)

    def _take_back(self) -> None:
        """Undo in reverse: workspaces are idle and gone before the pool is, the pool before the device."""
        while self._undo:
            self._undo.pop()()


def _cuda_decoder() -> PreparedDecoder:
    return cast("PreparedDecoder", decoder_for("cuda"))


def _forget_devices() -> None:
    """Drop what is kept for devices, private pools among it; arrays that live keep their memory."""
    device = sys.modules.get("xarray_gpuzarr.cuda.device")  # absent without CuPy, incomplete while it is imported
    forget = getattr(device, "forget_devices", None)
    if forget is not None:
        forget()


preparation = Preparation()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=preparation.restart)
