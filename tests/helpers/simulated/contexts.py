"""Contexts of several GPUs, made as CUDA's runtime makes them since version 12, and who has made which.

Each thread begins with device 0 and no context. ``cudaSetDevice`` makes the device's context, and so does any call that
needs one on a thread that has none: that of the thread's device. A destructor is such a call.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

_FIRST = 0x100
"""Handle of the context of device 0."""


@dataclass(frozen=True, slots=True)
class Made:
    """A context that has come into being."""

    device: int
    thread: str
    call: str


@dataclass(slots=True)
class _Thread:
    """What CUDA knows of a thread; no `threading.local`, which may go before what else is local to the thread."""

    device: int = 0
    context: int = 0


class Contexts:
    """What `cudaSetDevice` and its like know."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self._threads: defaultdict[int, _Thread] = defaultdict(_Thread)

    @property
    def _thread(self) -> _Thread:
        return self._threads[threading.get_native_id()]

    @property
    def device(self) -> int:
        """The calling thread's device: that of its context, if it has one."""
        return self._thread.context % _FIRST if self._thread.context else self._thread.device

    @property
    def context(self) -> int:
        """Handle of the calling thread's context; 0 if it has none."""
        return self._thread.context

    def set_device(self, device: int) -> None:
        """Make a device the calling thread's, with its context."""
        self._thread.device = device
        self._make(device, "cudaSetDevice")

    def set_context(self, context: int) -> None:
        """Make a context the calling thread's, or none; its device for later stays what it is."""
        self._thread.context = context

    @staticmethod
    def made_by_the_driver(device: int) -> int:
        """Return the handle of another context of a device, which ``cuCtxCreate`` has made."""
        return 2 * _FIRST + device

    def need(self, call: str) -> None:
        """Make the context that a call needs, if its thread has none."""
        if not self._thread.context:
            self._make(self._thread.device, call)

    def dying(self, thing: Any, call: str) -> Any:
        """Return a thing whose destructor is a call of CUDA."""
        weakref.finalize(thing, self.need, call).atexit = False
        return thing

    def _make(self, device: int, call: str) -> None:
        self._thread.context = _FIRST + device
        if device not in {made.device for made in self.made}:
            self.made.append(Made(device, threading.current_thread().name, call))
