"""Importing one module right after another one, whenever that happens.

xarray's accessors can be registered only once xarray is imported. `import_after` waits for it, so that importing this
package does not have to bring xarray in. Called by the package itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_after(first: str, then: str) -> None:
    """Import a module as soon as another one is imported; now, if it is.

    Parameters
    ----------
    first, then : str
        Full names of modules.
    """
    waiting = _Waiting(first, then)
    sys.meta_path.insert(0, waiting)
    if first in sys.modules:  # looked up last, lest another thread imports it in between
        waiting.end()


class _Waiting(MetaPathFinder):
    """Finds a module as others do, and has it import another one at its end."""

    def __init__(self, first: str, then: str) -> None:
        self._first, self._then = first, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._first:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_both(module: ModuleType) -> None:
                execute(module)
                self.end()

            loader.exec_module = execute_both  # type: ignore[method-assign]  # a loader is made for each spec
        return spec

    def end(self) -> None:
        """Import what was waited with, and wait no longer."""
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread is at it, and may hold locks that this one would wait for
            return
        import_module(self._then)
