"""Interrupts at every point where CPython handles signals: which there are in a piece of work, and one at a time.

A handler of a signal runs on the main thread once a C function has returned to bytecode, at the start of a Python
function, at the end of a turn of a loop, or in place of what a C function would have waited for. `Interrupts` counts
these points and raises `KeyboardInterrupt` at the one that is asked for, which a timer meets only by chance.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import xarray_gpuzarr

_TOOL = 4
_EVENTS = sys.monitoring.events
_WATCHED = _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.CALL | _EVENTS.JUMP  # returns from C come with calls
_WAITS = ("acquire", "get", "sleep", "preadv", "open", "put")
"""C functions that handle signals while they wait, and then have done nothing."""
_HELPERS = str(Path(__file__).parent)
_PACKAGE = str(Path(xarray_gpuzarr.__file__).parent)


class Interrupts:
    """Counts points of the thread that made it, and interrupts at one of them."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._n = 0
        self._at: int | None = None
        self._on = False
        sys.monitoring.use_tool_id(_TOOL, "interrupts")
        for event in (_EVENTS.PY_START, _EVENTS.PY_RESUME, _EVENTS.C_RETURN):
            sys.monitoring.register_callback(_TOOL, event, self._point)
        sys.monitoring.register_callback(_TOOL, _EVENTS.CALL, self._call)
        sys.monitoring.register_callback(_TOOL, _EVENTS.JUMP, self._jump)
        sys.unraisablehook = lambda _: None  # an interrupt within a finalizer is lost

    def run(self, work: Callable[[], Any], at: int | None = None) -> int:
        """Do some work, interrupted at one of its points, counted from 1; return how many points came up."""
        self._n, self._at = 0, at
        sys.monitoring.set_events(_TOOL, _WATCHED)
        self._on = True
        try:
            work()
        finally:
            self._on = False
            sys.monitoring.set_events(_TOOL, 0)
        return self._n

    def _call(self, code: CodeType, offset: int, function: Any, _: object) -> None:
        if getattr(function, "__name__", "") in _WAITS and not hasattr(function, "__code__"):
            self._point(code, offset)

    def _jump(self, code: CodeType, offset: int, to: int) -> None:
        if to <= offset:
            self._point(code, offset)

    def _point(self, code: CodeType, *_: object) -> None:
        if not self._on or threading.get_ident() != self._thread or is_foreign(sys._getframe(1)):
            return
        self._n += 1
        if self._n == self._at:
            self._on = False
            raise KeyboardInterrupt


def is_foreign(frame: FrameType | None) -> bool:
    """Say whether a point lies outside of the package and what it calls, or in a fake of the tests."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith((_PACKAGE, _HELPERS)):
            return path.startswith(_HELPERS)
        frame = frame.f_back
    return True
