"""Reads of little: one chunk, a part of one, and the planes of one after another, with caches and without."""
