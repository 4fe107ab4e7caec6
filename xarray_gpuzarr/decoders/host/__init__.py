"""The host decoder carries out the same plans as the CUDA decoder, by compiled loops or with NumPy, on threads."""

from xarray_gpuzarr.decoders.host.decoder import HostDecoder

__all__ = ["HostDecoder"]
