"""The host decoder: the same plans as the CUDA decoder's, carried out with NumPy on threads."""

from xarray_gpuzarr.decoders.host.decoder import HostDecoder

__all__ = ["HostDecoder"]
