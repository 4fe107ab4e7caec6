"""State that a process has once: settings, counters, threads, warnings, progress. Knows no Zarr and no GPU."""
