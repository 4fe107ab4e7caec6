"""How chunks come to the device: through pinned slots, straight from files, or decoded by the host on the way."""
