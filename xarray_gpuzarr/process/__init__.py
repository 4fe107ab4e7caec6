"""What a process has one of: settings, counters, threads and cores, warnings, progress. Knows no Zarr and no GPU."""
