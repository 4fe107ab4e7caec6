"""What a machine can do: `diagnosis` examines it for ``gpuzarr doctor``."""
