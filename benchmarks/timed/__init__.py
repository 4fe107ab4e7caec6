"""A device that takes its time: the real CUDA decoder, real files, a modelled GPU. ``python -m benchmarks.timed``."""
