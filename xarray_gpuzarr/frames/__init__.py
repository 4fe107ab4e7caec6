"""What the bytes of compressed chunks say about themselves, before anything is decompressed."""
