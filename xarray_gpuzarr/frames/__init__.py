"""Headers of compressed chunks (frames), which are read and checked before anything is decompressed."""
