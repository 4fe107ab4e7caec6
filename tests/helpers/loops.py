"""Reads with the compiled loops and without them."""

import pytest

from xarray_gpuzarr.native import library


def without_loops(patch: pytest.MonkeyPatch) -> None:
    """Let reads do without the compiled loops."""
    patch.setattr(library, "_found", lambda: "a test does without them")
