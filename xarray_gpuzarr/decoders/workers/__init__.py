"""Decoder of a client without a GPU whose cluster's workers have one."""
