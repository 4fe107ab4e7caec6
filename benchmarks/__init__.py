"""Reading speed and memory of xarray_gpuzarr beside its peers, in one run; see README.md."""
