"""Segments and batches of chunks, their sizes, and the streams that lie in them."""
