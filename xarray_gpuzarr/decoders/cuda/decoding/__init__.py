"""Decoding of a batch on the device: plan it, decompress it, place its elements, check the device's report."""
