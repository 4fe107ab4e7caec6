"""Lets whole test modules run their kernels strictly: ``pytest -p helpers.kernels.strict_plugin tests/cuda``.

Minutes where it takes seconds: for a kernel that is being written. `STRICT_SEED` draws another order.
"""

import functools
import os

from helpers.kernels import on_host as host_kernels
from helpers.kernels.strict_kernels import run_strictly

host_kernels.launch = functools.partial(run_strictly, seed=int(os.environ.get("STRICT_SEED", "0")))
