"""Decoders: `host` and `cuda`, two siblings behind one protocol, and `choice`, the one place that chooses."""
