"""Readers of Zarr arrays, ours and others, measured in turns in processes of their own; rows are kept as JSON."""
