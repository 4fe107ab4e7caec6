"""``python -m on_gpu.proof``: the commands of docs/gpu.md one after another, each within its time.

Nothing stops it: a step that fails or takes too long is noted, and the next one runs. Logs go to a folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_SECONDS = 600
"""No step takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One make target."""

    target: str
    minutes: float
    """What it should take."""


STEPS = (
    Step(target="doctor-gpu", minutes=1),
    Step(target="facts-gpu", minutes=5),
    Step(target="test-gpu", minutes=8),
    Step(target="sanitize-gpu", minutes=5),
    Step(target="soak-gpu", minutes=3),
    Step(target="bench-gpu", minutes=7),
)
"""In this order: what is wrong should be known before it is measured."""

Run = Callable[[Step, Path], int]
"""Runs a step, writes its log, and returns its exit status; 124 if its time was over."""


def run_step(step: Step, log: Path) -> int:
    """Run a make target; show what it prints, and keep it; end it, and all that it started, with its time."""
    is_over = threading.Event()
    make = subprocess.Popen(
        ["make", step.target], text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with log.open("w") as out, make:

        def end() -> None:
            is_over.set()
            os.killpg(make.pid, signal.SIGTERM)

        timer = threading.Timer(MOST_SECONDS, end)
        timer.start()
        assert make.stdout is not None
        for line in make.stdout:
            print(line, end="", flush=True)
            out.write(line)
        status = make.wait()
        timer.cancel()
    return 124 if is_over.is_set() else status


def main(arguments: Sequence[str] | None = None, run: Run = run_step) -> int:
    """Run the chosen steps; return 1 if one of them failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m on_gpu.proof", description="Everything, in order.")
    parser.add_argument("--only", nargs="+", metavar="TARGET", choices=[s.target for s in STEPS], help="some of them")
    parser.add_argument("--logs", type=Path, default=Path("gpu-proof"), help="folder for logs (gpu-proof)")
    options = parser.parse_args(arguments)
    options.logs.mkdir(parents=True, exist_ok=True)
    said = []
    for step in STEPS:
        if options.only is None or step.target in options.only:
            print(f"== make {step.target}", flush=True)
            start = time.monotonic()
            status = run(step, options.logs / f"{step.target}.log")
            took = (time.monotonic() - start) / 60
            said.append((step, status, f"{step.target:14} exit status {status:3}  {took:4.1f} of {step.minutes:g} min"))
    print(*(line for *_, line in said), sep="\n")
    return int(any(status for _, status, _ in said))


if __name__ == "__main__":
    sys.exit(main())
