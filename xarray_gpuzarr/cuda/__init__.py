"""The GPU, as far as a decoder needs it: the only modules that import CuPy or RMM or call nvCOMP. They know no Zarr."""
