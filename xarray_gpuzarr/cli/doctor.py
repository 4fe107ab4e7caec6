"""``gpuzarr doctor``: prints what `machine.diagnosis` finds on this machine, section by section as it finds it.

With ``--json`` it prints one document instead, and with ``--report`` one block of text.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from xarray_gpuzarr.cli.terminal import StatusLine, counted, naming_unwritable, say, table_of
from xarray_gpuzarr.machine.diagnosis.examine import USUAL_SIZES, examine
from xarray_gpuzarr.machine.diagnosis.rates import Sizes
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section


def run(options: argparse.Namespace, sizes: Sizes = USUAL_SIZES) -> int:
    """Examine this machine and print the results. Return 1 if something is wrong, otherwise 0."""
    is_shown = options.json != "-" and not options.report
    line = StatusLine()
    # This call only checks the device. Each part is examined when the loop below draws its section.
    examination = examine(options.device, progress=line.show, sizes=sizes)
    if options.json not in (None, "-"):  # a file that cannot be written fails now rather than after the examination
        with naming_unwritable("--json", Path(options.json)):
            Path(options.json).open("a").close()
    sections = []
    try:
        for section in examination:
            sections.append(section)
            line.clear()
            if is_shown:
                _print(section)
    finally:
        line.clear()
    diagnosis = Diagnosis(sections=tuple(sections))
    if options.json is not None:
        text = json.dumps(diagnosis.document, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with naming_unwritable("--json", Path(options.json)):
                Path(options.json).write_text(text)
    if options.report:
        sys.stdout.write(diagnosis.to_report() + "\n")
    if is_shown:
        n_failures = len(diagnosis.failures)
        say(f"{counted(n_failures, 'thing')} went wrong, see above." if n_failures else "All is well.")
    return 1 if diagnosis.failures else 0


def _print(section: Section) -> None:
    console = Console()
    console.print(Text(section.title, style="bold"))
    if section.columns:
        console.print(table_of(section.columns, section.rows))
    else:
        width = max((len(row[0]) for row in section.rows), default=0)
        say(*(f"{row[0].ljust(width)}  {'  '.join(row[1:])}" for row in section.rows))
    say(*section.notes, *(f"FAILED: {failure}" for failure in section.failures), "")
