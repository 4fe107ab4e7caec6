"""State that exists once in a process: settings, counters, threads, warnings and progress. Knows no Zarr and no GPU."""
