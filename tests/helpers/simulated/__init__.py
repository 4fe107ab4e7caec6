"""A GPU on host memory, as unkind as the contract of `cuda.api` allows; and NVIDIA's libraries, played by fakes."""
