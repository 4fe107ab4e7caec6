"""Lets a whole test module run its kernels strictly: ``pytest -p helpers.strict_plugin tests/test_blosc_kernels.py``.

Minutes where it takes seconds: for a kernel that is being written. `STRICT_SEED` draws another order.
"""

import functools
import os

from helpers import host_kernels
from helpers.strict_kernels import run_strictly

host_kernels.launch = functools.partial(run_strictly, seed=int(os.environ.get("STRICT_SEED", "0")))
