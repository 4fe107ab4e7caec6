"""Tests of kernels run once more, in a process in which a kernel aborts on any access outside of an allocation."""

from helpers.every_pair import COMBINATIONS, usually
from helpers.kernels.on_host import run_child, sanitized_environment

NAMES = ("kernels", "blosc_kernels", "checksum_kernels", "filter_kernels", "zstd_kernel")
MODULES = [f"tests/cuda/test_{name}.py" for name in NAMES]


def test_sanitizers_find_nothing() -> None:
    environment = sanitized_environment() | {COMBINATIONS: usually("values", full="all")}
    child = run_child(environment, "-m", "pytest", "-vx", "-p", "no:xdist", "-m", "sanitized", *MODULES)
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    assert [module for module in MODULES if f"{module}::" not in child.stdout] == []
