"""Tasks of dask: their names, their memory, what they read ahead, and the output that they share."""
