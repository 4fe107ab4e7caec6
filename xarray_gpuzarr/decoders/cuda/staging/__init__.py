"""How chunks come to the device: through pinned slots, or straight from files if that is asked for."""
