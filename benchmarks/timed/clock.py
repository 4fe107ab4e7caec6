"""The clock that host and modelled device share; tests have one that goes only when somebody waits."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import suppress
from typing import Protocol

_PR_SET_TIMERSLACK = 29
"""Of prctl, as the manual of Linux has it."""


class Clock(Protocol):
    """Says what time it is, and lets time pass."""

    def now(self) -> float:
        """Return seconds since whenever; never less than before."""

    def sleep(self, seconds: float) -> None:
        """Let time pass without using a core."""

    def spin(self, until_s: float) -> None:
        """Let time pass as a thread does that is busy inside a call of CUDA."""


class WallClock:
    """Real time. Where cores are free, Linux wakes sleepers some 10 us late, about as CUDA's blocking waits return."""

    now = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._is_exact = threading.local()

    def sleep(self, seconds: float) -> None:
        """Let time pass without using a core."""
        if not hasattr(self._is_exact, "here"):
            self._is_exact.here = True
            with suppress(OSError, AttributeError):  # not Linux: sleepers are woken later
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))  # else 50 us
        time.sleep(seconds)

    def spin(self, until_s: float) -> None:
        """Use a core, Python's lock included, until then."""
        while time.perf_counter() < until_s:
            pass
