"""Reads of local stores on the host, by every reader."""
