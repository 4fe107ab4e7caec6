"""``python -m benchmarks.kernel_counts``: the table of what kernels execute; see the package's docstring.

Needs the packages of the tests, ``PYTHONPATH=tests``, and the extra ``kernel-counts``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from benchmarks.kernel_counts.cases import all_cases
from benchmarks.kernel_counts.machine_code import MissingToolError
from benchmarks.kernel_counts.table import Row, count, markdown

_TABLE = re.compile(r"(?<=<!-- counted -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def main() -> None:
    """Count, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_counts", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases that have this in their name")
    parser.add_argument("--page", type=Path, help="a page whose table, between <!-- counted --> marks, is replaced")
    asked = parser.parse_args()
    chosen = [case for case in all_cases() if asked.only in f"{case.kernel} {case.what}"]
    rows: list[Row] = []
    try:
        for case in chosen:
            rows.append(count(case))
            _say(rows[-1])
    except MissingToolError as error:
        sys.exit(str(error))
    table = markdown(rows)
    print(table)
    if asked.page:
        asked.page.write_text(_TABLE.sub(lambda _: table, asked.page.read_text()))


def _say(row: Row) -> None:
    for arch, column in row.columns.items():
        print(
            f"{row.case.kernel}, {row.case.what}, {row.case.shape}: sm_{arch} {column.instructions:.1f} of"
            f" {row.budget:.0f},"
            f" share {column.share:.2f} ({column.bound}), {column.registers} registers, {column.occupancy:.0%},"
            f" {column.spills} spills, misfit {column.misfit:.3f}",
            file=sys.stderr,
            flush=True,
        )


main()
