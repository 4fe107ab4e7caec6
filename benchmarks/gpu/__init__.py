"""Benchmarks of reads to a GPU: ``python -m benchmarks.gpu``."""
