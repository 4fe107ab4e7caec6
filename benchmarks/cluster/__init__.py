"""Reads by workers of dask.distributed, and the graphs that they are given."""
