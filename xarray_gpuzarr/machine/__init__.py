"""What a machine can do: `diagnosis` examines it for ``gpuzarr doctor``, `bench` compares readers on it."""
