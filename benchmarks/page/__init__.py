"""Writes docs/performance.md and docs/measurements.md; ``python -m benchmarks.page``."""
