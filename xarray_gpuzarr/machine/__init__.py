"""Abilities of a machine: `diagnosis` examines them for ``gpuzarr doctor``."""
