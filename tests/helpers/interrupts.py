"""Interrupts at one exact place: instead of a call, or as it returns."""

from collections.abc import Callable
from typing import Any


def interrupt(*_: object, **__: object) -> Any:
    """Stand in for a call that a signal interrupts."""
    raise KeyboardInterrupt


def then_interrupt(call: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that makes a call, and that a signal interrupts as the call returns."""

    def interrupted(*arguments: object, **keywords: object) -> Any:
        call(*arguments, **keywords)
        raise KeyboardInterrupt

    return interrupted


def interrupting(kind: type, method: str) -> Any:
    """Return an empty container that is interrupted as `method` returns, which adds to it."""
    return type("Interrupting", (kind,), {method: then_interrupt(getattr(kind, method))})()
