"""Reads of stores behind a server on loopback."""
