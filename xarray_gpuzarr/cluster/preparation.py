"""`Preparation`: prepares a process for reading to its GPU before the first read, and undoes this later.

Several dask workers may run in one process. The first one prepares the process, and the last one to leave undoes it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any, cast

from xarray_gpuzarr.cuda.api import Undo
from xarray_gpuzarr.cuda.configuration import configure, options_in_force
from xarray_gpuzarr.decoders.choice import decoder_for, usable_device
from xarray_gpuzarr.decoders.protocol import Device, PreparedDecoder


class Preparation:
    """The changes to this process that its workers need."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all workers and changes. A forked process calls this: its parent undoes the changes."""
        self._lock = threading.Lock()
        self._n_workers = 0
        self._undo: list[Undo] = []
        """Functions that undo the changes, in the order in which these were made."""

    def enter(self, *, device: str, options: Mapping[str, Any]) -> Device:
        """Prepare this process for one more worker.

        Only the first worker's `options` take effect. If preparing the process for it raises an error, all changes are
        undone.

        Parameters
        ----------
        device, options
            As for `GpuZarrPlugin`.

        Returns
        -------
        Device
            The device that the process reads to.

        Raises
        ------
        GpuZarrError
            If the device cannot be used, or an option cannot take effect.
        """
        resolved = usable_device(device)
        with self._lock:
            if self._n_workers == 0:
                try:
                    self._prepare(resolved, options)
                except BaseException:
                    self._undo_all()
                    raise
            self._n_workers += 1
        return resolved

    def leave(self) -> None:
        """Forget one worker. After the last one, wait for reads that are under way, and undo all changes."""
        with self._lock:
            self._n_workers -= 1
            if self._n_workers == 0:
                self._undo_all()

    def prepare_threads(self, executor: Executor, n_threads: int, device: Device) -> None:
        """Allocate the streams and the pinned memory that reads of an executor's threads use; `device` is a GPU.

        Nothing is allocated for an executor of processes, because it reads in other processes than this one.
        """
        if not isinstance(executor, ProcessPoolExecutor):
            _cuda_decoder(device).prepare_threads(n_threads)

    def _prepare(self, device: Device, options: Mapping[str, Any]) -> None:
        """Make the changes, and keep a function that undoes each in `_undo`."""
        if options:
            previous = options_in_force()
            configure(**options)
            self._undo.append(partial(_restore_options, previous))
        if device != "host":
            decoder = _cuda_decoder(device)
            self._undo.append(_forget_devices)  # before `prepare`, which may raise after it has made memory pools
            undo_decoder = decoder.prepare()
            self._undo.append(undo_decoder)
            self._undo.append(decoder.close)

    def _undo_all(self) -> None:
        """Undo the changes in reverse order.

        So workspaces are closed first. Then CuPy stops using RMM's pool, devices are forgotten, and options restored.
        """
        while self._undo:
            self._undo.pop()()


def _restore_options(previous: Mapping[str, Any]) -> None:
    configure(**previous)


def _cuda_decoder(device: Device) -> PreparedDecoder:
    assert device != "host"
    return cast("PreparedDecoder", decoder_for(device))


def _forget_devices() -> None:
    """Release everything that is kept for devices, such as private pools. Existing arrays keep their memory."""
    # The module is absent without CuPy, and incomplete while it is being imported.
    device = sys.modules.get("xarray_gpuzarr.cuda.device")
    forget = getattr(device, "forget_devices", None)
    if forget is not None:
        forget()


preparation = Preparation()

os.register_at_fork(after_in_child=preparation.restart)
