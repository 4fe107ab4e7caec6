"""``python -m benchmarks.gpu``: run it from the root of the repository, on a machine with a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.gpu.cases import Cases
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu

COMMAND = Command(
    module="benchmarks.gpu",
    kind="gpu",
    description="Measure reads to the GPU.",
    seconds=420.0,
    cases=lambda gpu, folder, scale: Cases(gpu, folder, scale).all(),
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = Gpu) -> int:
    """Run the chosen cases; return 1 if something failed, 2 if nothing could be run, else 0."""
    return exit_status(COMMAND.run(COMMAND.parser().parse_args(arguments), make_gpu))


if __name__ == "__main__":
    sys.exit(main())
