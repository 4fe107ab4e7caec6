"""Batches of crops for training, by `xarray_gpuzarr.batches` and by its peers."""
