"""Headers of compressed chunks, read and checked before anything is decompressed."""
