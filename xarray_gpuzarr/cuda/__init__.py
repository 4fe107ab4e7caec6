"""The GPU as a decoder uses it. Only these modules import CuPy or RMM, or call nvCOMP. They know nothing of Zarr."""
