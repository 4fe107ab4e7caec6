"""The CUDA decoder: it carries out the same plans as the host decoder, on a GPU, in batches of chunks."""

from xarray_gpuzarr.decoders.cuda.decoder import CudaDecoder

__all__ = ["CudaDecoder"]
