"""``gpuzarr doctor``: print what `machine.diagnosis` finds, as it finds it; or one document, or one report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from xarray_gpuzarr.cli.terminal import StatusLine, naming_unwritable, say, table_of
from xarray_gpuzarr.machine.diagnosis.examine import USUAL, examine
from xarray_gpuzarr.machine.diagnosis.rates import Sizes
from xarray_gpuzarr.machine.diagnosis.report import Diagnosis, Section


def run(options: argparse.Namespace, sizes: Sizes = USUAL) -> int:
    """Examine this machine and say what was found; return 1 if something is wrong, else 0."""
    is_shown = options.json != "-" and not options.report
    line, sections = StatusLine(), []
    parts = examine(options.device, progress=line.show, sizes=sizes)
    if options.json not in (None, "-"):
        with naming_unwritable("--json", Path(options.json)):
            Path(options.json).open("a").close()
    try:
        for section in parts:
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
        n = len(diagnosis.failures)
        say(f"{n} thing{'s'[: n > 1]} went wrong, see above." if n else "All is well.")
    return int(bool(diagnosis.failures))


def _print(section: Section) -> None:
    console = Console()
    console.print(Text(section.title, style="bold"))
    if section.columns:
        console.print(table_of(section.columns, section.rows))
    else:
        width = max((len(row[0]) for row in section.rows), default=0)
        say(*(f"{row[0].ljust(width)}  {'  '.join(row[1:])}" for row in section.rows))
    say(*section.notes, *(f"FAILED: {failure}" for failure in section.failures), "")
