"""`encoder_for`: how the compiled loops encode the chunks of an array that zarr-python has opened."""

from __future__ import annotations

from zarr.codecs import ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.metadata import Metadata
from xarray_gpuzarr.write.encoder import Encoder, make_encoder


def encoder_for(metadata: Metadata, spec: ArraySpec) -> Encoder | str:
    """Return how the compiled loops encode the chunks of an array.

    Parameters
    ----------
    metadata : zarr.core.metadata.ArrayV2Metadata or ArrayV3Metadata
        The array's metadata, as zarr-python has parsed it.
    spec : ArraySpec
        The same array, as this package has parsed it.

    Returns
    -------
    Encoder or str
        The encoder, or the reason why zarr-python has to encode the chunks.
    """
    if "\0" in spec.path:  # C ends a file name at the zero byte, so the loops would write another file
        return "the path has a zero byte, which no file name can have; zarr-python refuses it"
    chunk_order = "morton"
    if isinstance(metadata, ArrayV3Metadata):
        for codec in metadata.codecs:
            if isinstance(codec, ShardingCodec):
                # Older versions of zarr-python have no such attribute, and write chunks in Morton order.
                chunk_order = getattr(codec, "subchunk_write_order", chunk_order)
    return make_encoder(spec, str(chunk_order))
