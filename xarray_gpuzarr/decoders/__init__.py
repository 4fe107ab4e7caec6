"""Decoders: `host`, `cuda` and `workers` implement the protocol `Decoder`, and `choice` selects one of them."""
