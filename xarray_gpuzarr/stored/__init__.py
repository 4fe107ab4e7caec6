"""Descriptions of stored arrays: metadata, codecs, shard indexes and CF attributes, as frozen data."""
