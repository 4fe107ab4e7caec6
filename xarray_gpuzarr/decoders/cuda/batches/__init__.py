"""Segments and batches of chunks, their sizes, and the compressed streams inside them."""
