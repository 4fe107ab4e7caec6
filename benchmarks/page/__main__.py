"""``python -m benchmarks.page``: writes the pages of measurements and their figures from the newest results.

Nothing on the pages is typed: every number is read from `results/*.json` or from the sources that `published` names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.page import measurements, performance
from benchmarks.page.figures import draw_all
from benchmarks.page.runs import KINDS, newest

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Write the pages and their figures."""
    runs = {kind: run for kind in KINDS if (run := newest(kind)) is not None}
    draw_all(runs, DOCS / "figures")
    (DOCS / "performance.md").write_text(performance.page(runs))
    (DOCS / "measurements.md").write_text(measurements.page(runs))
    print(f"written: performance.md, measurements.md and figures in {DOCS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
