"""Print constraints.txt with what some environments pin otherwise.

``python .ci/constraints.py cuda13``, or ``cuda12``, for GPUs: dask as RAPIDS wants it, and CUDA's wheels. ``torch`` for
PyTorch: the wheels of CUDA that it was built with.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def pins(name):
    """Read a file of ``name==version`` lines."""
    return dict(line.split("==") for line in (HERE / name).read_text().splitlines())


for name, version in (pins("constraints.txt") | pins(f"constraints-{sys.argv[1]}.txt")).items():
    print(f"{name}=={version}")
