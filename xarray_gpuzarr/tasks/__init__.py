"""Tasks of dask: their names, chunks, memory and output."""
