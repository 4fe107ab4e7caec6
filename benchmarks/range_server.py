"""The server of stores that the tests have, and what it counts: late, or over a slow line."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[1] / "tests")
if _TESTS not in sys.path:
    sys.path.append(_TESTS)

from helpers.stores.range_server import LoggedRequest, RangeServer  # noqa: E402

__all__ = ["LoggedRequest", "RangeServer"]
