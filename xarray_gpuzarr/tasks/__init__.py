"""dask's side: what tasks are called, how many threads and how much memory they take, and into what they read."""
