"""Writes docs/performance.md and build/measurements.md; ``python -m benchmarks.page``."""
