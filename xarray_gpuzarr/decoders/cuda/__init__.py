"""The CUDA decoder: the same plans as the host decoder's, decoded on a GPU in batches."""

from xarray_gpuzarr.decoders.cuda.decoder import CudaDecoder

__all__ = ["CudaDecoder"]
