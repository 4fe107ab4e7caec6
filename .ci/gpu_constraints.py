"""Print constraints.txt with what environments for GPUs pin otherwise: dask as RAPIDS wants it, and CUDA's wheels.

``python .ci/gpu_constraints.py 13`` for CUDA 13, ``12`` for CUDA 12.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pins(name):
    """Read a file of ``name==version`` lines."""
    return dict(line.split("==") for line in (ROOT / name).read_text().splitlines())


for name, version in (pins("constraints.txt") | pins(f"constraints-cuda{sys.argv[1]}.txt")).items():
    print(f"{name}=={version}")
