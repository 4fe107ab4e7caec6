"""Decoding of a batch on the device: it is planned, decompressed and placed, and its status is checked."""
