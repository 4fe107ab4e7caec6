"""A codec pipeline with which zarr-python itself reads and writes through this package.

If this package is installed, zarr-python imports this module whenever any program opens an array. So the modules that
read and write are imported later.
"""

from xarray_gpuzarr.codec_pipeline.buffer import NDBuffer
from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline
from xarray_gpuzarr.codec_pipeline.settings import zarr_pipeline

__all__ = ["CodecPipeline", "NDBuffer", "zarr_pipeline"]
