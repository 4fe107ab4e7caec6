"""What is stored in tests: arrays, datasets, frames and metadata, made by other libraries, by hand, or at random."""
