"""The CUDA kernels without a GPU: built by g++, run strictly, mutated; and what NumPy makes of the same input."""
