"""The front door for plain zarr: a codec pipeline that reads with this engine and leaves all else to zarr-python.

zarr-python imports this for every array that any program opens, once this package is installed: what reads comes later.
"""

from xarray_gpuzarr.codec_pipeline.buffer import NDBuffer
from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline, zarr_pipeline

__all__ = ["CodecPipeline", "NDBuffer", "zarr_pipeline"]
