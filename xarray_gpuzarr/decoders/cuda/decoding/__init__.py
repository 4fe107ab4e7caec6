"""What happens to a batch on the device: planned, decompressed, placed, and what came of it, checked."""
