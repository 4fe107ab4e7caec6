"""`zarr_pipeline`: make zarr-python use this package's codec pipeline, from now on or within a ``with`` block."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from typing import Any

import zarr
from zarr.buffer import cpu
from zarr.registry import get_ndbuffer_class

from xarray_gpuzarr.codec_pipeline.buffer import NDBUFFER_NAME

_PIPELINE_SETTING = "codec_pipeline.path"
_NDBUFFER_SETTING = "ndbuffer"
_OURS = {_PIPELINE_SETTING: "xarray_gpuzarr.CodecPipeline", _NDBUFFER_SETTING: NDBUFFER_NAME}
"""Settings of zarr-python, and their values for this package."""


def zarr_pipeline() -> AbstractContextManager[Any]:
    """Let zarr-python open arrays with this package's codec pipeline, from now on or within a ``with`` block.

    This changes zarr-python's settings ``codec_pipeline.path`` and, if results are NumPy arrays, ``ndbuffer`` (see
    `NDBuffer`).

    Returns
    -------
    context manager
        Restores the settings at the end of its block. If several blocks overlap, on any threads, the last one to end
        restores them. An array keeps the pipeline with which it was opened.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> store = zarr.storage.MemoryStore()
    >>> _ = zarr.create_array(store, data=np.arange(12).reshape(3, 4), chunks=(1, 2), shards=(2, 4))
    >>> with zarr_pipeline():
    ...     array = zarr.open_array(store)
    >>> array[1:, ::2]
    array([[ 4,  6],
           [ 8, 10]])
    """
    return PipelineBlock()


class PipelineBlock(ExitStack):
    """Changes zarr-python's settings; restores them at the end of its ``with`` block. See `zarr_pipeline`."""

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False
        self._change = _settings.begin()
        self.callback(self._end)

    def _end(self) -> None:
        self._has_ended = True
        _settings.end(self._change)

    def __repr__(self) -> str:
        if self._has_ended:
            return "<zarr_pipeline(): has ended>"
        if zarr.config.get(_PIPELINE_SETTING) != _OURS[_PIPELINE_SETTING]:
            return "<zarr_pipeline(): another codec pipeline was set since>"
        return "<zarr_pipeline(): zarr-python now opens arrays with the codec pipeline of xarray_gpuzarr>"


class _Change:
    """A change of zarr-python's settings by this package, which all blocks that begin while it is in force share."""

    def __init__(self, outer: _Change | None) -> None:
        self.outer = outer
        """The change that was in force before, if its blocks have not ended; else None."""
        self.n_users = 0
        """Calls of `zarr_pipeline` that use it, minus the blocks that have ended since."""
        self.before: dict[str, Any] = {}
        """The settings before they were changed."""


class _Settings:
    """zarr-python's settings, which are changed while any thread uses this package's codec pipeline."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._current: _Change | None = None
        """The last change with blocks that have not ended. None if there is none."""

    def begin(self) -> _Change:
        """Change the settings, unless they are changed already. Return the change, for `end`."""
        with self._lock:
            change = self._current
            is_changed = zarr.config.get(_PIPELINE_SETTING) == _OURS[_PIPELINE_SETTING]
            # The program may have set another pipeline since the last change, inside a block or after it.
            if change is None or not is_changed:
                self._current = change = _Change(change)
            if not is_changed:
                _set(change, _PIPELINE_SETTING)
            if get_ndbuffer_class() is cpu.NDBuffer and zarr.config.get(_NDBUFFER_SETTING) != _OURS[_NDBUFFER_SETTING]:
                _set(change, _NDBUFFER_SETTING)
            change.n_users += 1
            return change

    def end(self, change: _Change) -> None:
        """End a block. If no other block uses the last change, restore the settings that were in force before it."""
        with self._lock:
            change.n_users -= 1
            while self._current is not None and not self._current.n_users:
                _restore(self._current)
                self._current = self._current.outer


def _set(change: _Change, setting: str) -> None:
    """Set a setting of zarr-python to this package's value, and record what it was before."""
    change.before[setting] = zarr.config.get(setting)
    zarr.config.set({setting: _OURS[setting]})


def _restore(change: _Change) -> None:
    """Undo a change, except of settings that others have changed since."""
    for setting, value in change.before.items():
        if zarr.config.get(setting) == _OURS[setting]:
            zarr.config.set({setting: value})


_settings = _Settings()
