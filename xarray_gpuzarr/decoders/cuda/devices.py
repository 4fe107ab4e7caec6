"""The devices that a process reads to, and the streams and memory that it keeps for each of them.

State of CUDA does not survive a fork, so a process that was forked from one that had used a GPU is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.resources import DeviceResources
from xarray_gpuzarr.decoders.cuda.checks.trust import Trust
from xarray_gpuzarr.errors import DeviceUnavailableError
from xarray_gpuzarr.process.device_options import resource_options


class Devices:
    """Devices that this process reads to, found when they are first used. Safe to use from several threads.

    Parameters
    ----------
    find_device : callable
        Returns the device with the number that it is given, or without a number, the calling thread's current device.
    trust : Trust
        Outcomes of self-checks. `current_resources` refuses a device that cannot even copy bytes.
    """

    def __init__(self, find_device: Callable[..., DeviceApi], trust: Trust) -> None:
        self.find_device = find_device
        self._trust = trust
        self.resources: dict[int, DeviceResources] = {}
        """Resources of each device, by its number."""
        self._lock = threading.Lock()
        self._processes: set[int] = set()
        """Ids of the processes that have used a device: this one, or one that it was forked from."""

    @property
    def are_started(self) -> bool:
        """Whether this process has used a device. Until then, looking for one would start CUDA."""
        return os.getpid() in self._processes

    def device(self, *index: int) -> DeviceApi:
        """Return the device with a number, or the calling thread's current device if there is no argument.

        Raises
        ------
        DeviceUnavailableError
            If the device's state belongs to the process that this one was forked from.
        """
        self.refuse_after_fork()
        device = self.find_device(*index)
        self._processes.add(os.getpid())
        return device

    def refuse_after_fork(self) -> None:
        """Raise `DeviceUnavailableError` if a process that this one was forked from has used a device."""
        process = os.getpid()
        others = self._processes - {process}
        if others:
            raise DeviceUnavailableError(
                "cannot use the GPU in a forked process",
                tried=f"device='cuda' in process {process}; process {min(others)} had used the GPU before the fork",
                found="contexts, streams and memory of CUDA do not come along",
                do='start processes with "spawn" or "forkserver", or read with device="host" in this one',
            )

    def current_resources(self, *index: int) -> DeviceResources:
        """Return the resources of a device, which is selected as for `device`.

        After `configure` was called, they are made anew, once the reads that use the old ones have ended, so that there
        are never two pools. A read inside another read keeps the resources of the outer one.

        Raises
        ------
        DeviceUnavailableError
            If the check of copies fails on the device, or for the reason that `device` gives.
        """
        api = self.device(*index)
        options = resource_options()
        why = self._trust.checked_device(api).why_unusable()
        if why is not None:
            raise DeviceUnavailableError(
                "the GPU cannot be used",
                tried="copying bytes to it and back, before anything is read",
                found=why,
                do='read with device="host" or device="auto"; gpuzarr doctor says more',
            )
        resources = self.resources.get(api.index)
        if resources is not None and resources.is_in_read:
            return resources  # waiting for the outer read to end would never end
        with self._lock:
            resources = self.resources.get(api.index)
            # `configure` makes another object of options; `api` is another object if the option `memory` has changed.
            if resources is None or resources.options is not options or resources.api is not api:
                self._close_device(api.index)
                resources = self.resources[api.index] = DeviceResources(api, options)
            return resources

    def close(self) -> None:
        """Wait until all reads have ended, and free what is kept for all devices; later reads allocate it again."""
        with self._lock:
            for index in list(self.resources):
                self._close_device(index)

    def _close_device(self, index: int) -> None:
        """Wait until the reads of a device have ended, and free what is kept for it.

        An interrupted call keeps the resources, for the next call to close.
        """
        resources = self.resources.get(index)
        if resources is not None:
            with resources.api.activate():
                resources.close()
            del self.resources[index]
