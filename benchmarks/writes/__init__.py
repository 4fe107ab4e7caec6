"""Cases that write: whole arrays and parts of shards."""
