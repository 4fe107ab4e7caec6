"""The clock that host and modelled device share; tests have one that goes only when somebody waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, and lets time pass."""

    def now(self) -> float:
        """Return seconds since whenever; never less than before."""

    def sleep(self, seconds: float) -> None:
        """Let time pass without using a core."""

    def spin(self, until_s: float) -> None:
        """Let time pass as a thread does that is busy inside a call of CUDA."""


class WallClock:
    """Real time. The system wakes sleepers some 50 us late, about as late as CUDA's blocking waits return."""

    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)

    def spin(self, until_s: float) -> None:
        """Use a core, Python's lock included, until then."""
        while time.perf_counter() < until_s:
            pass
