"""`CompiledKernels`: the kernels of one device, each compiled by NVRTC when it is first used."""

from __future__ import annotations

import threading
from typing import Any

import cupy

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.failures import FAILURES, cuda_error
from xarray_gpuzarr.cuda.launch import COMPILE_OPTIONS, kernel_source


class CompiledKernels:
    """Functions of the kernels that have been compiled for a device. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.functions: dict[Kernel, Any] = {}
        """CuPy's function of each kernel that has been compiled."""

    def compile(self, kernel: Kernel) -> Any:
        """Return the function of a kernel, compiled at the first call. CuPy keeps compiled kernels on disk.

        CuPy appends ``-ftz=true`` to the compiler's options, and no other option overrides that. Denormal numbers are
        kept all the same, because the kernels' arithmetic is PTX that does not flush them to zero.

        Raises
        ------
        CudaError
            If the kernel cannot be compiled.
        """
        with self._lock:
            if kernel not in self.functions:
                try:
                    module = cupy.RawModule(code=kernel_source(kernel), options=COMPILE_OPTIONS, backend="nvrtc")
                    # The attribute `kernel` of CuPy's `RawKernel` is the function on this device. Launching the
                    # `RawKernel` itself would look it up each time.
                    self.functions[kernel] = module.get_function(kernel.name).kernel
                except FAILURES as error:
                    raise cuda_error(f"compiling {kernel.name} of {kernel.file}", error) from error
            return self.functions[kernel]
