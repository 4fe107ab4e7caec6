"""Staging: bring chunks into device memory, through pinned slots, or straight from files if that is requested."""
