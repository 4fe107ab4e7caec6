"""``python -m benchmarks.page``: writes the page of measurements, its figures, and all tables, from the newest results.

Nothing there is typed: every number is read from `results/*.json` or from the sources that `published` names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.page import measurements, performance
from benchmarks.page.figures import draw_all
from benchmarks.page.runs import KINDS, newest

ROOT = Path(__file__).parents[2]
DOCS, TABLES = ROOT / "docs", ROOT / "build" / "measurements.md"


def main() -> int:
    """Write the page, its figures and the tables."""
    runs = {kind: run for kind in KINDS if (run := newest(kind)) is not None}
    draw_all(runs, DOCS / "figures")
    (DOCS / "performance.md").write_text(performance.page(runs))
    TABLES.parent.mkdir(exist_ok=True)
    TABLES.write_text(measurements.page(runs))
    print(f"written: {DOCS / 'performance.md'}, its figures, and {TABLES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
