"""What is stored: metadata, codecs, shard indexes and CF attributes, as frozen data. Nothing here reads a chunk."""
