"""Reads of local files that are not in the page cache."""
