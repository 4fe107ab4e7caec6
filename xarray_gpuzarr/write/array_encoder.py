"""`encoder_for`: how the compiled loops encode the chunks of an array that zarr-python has opened."""

from __future__ import annotations

from zarr.codecs import ShardingCodec
from zarr.core.metadata import ArrayV3Metadata

from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.metadata import Metadata
from xarray_gpuzarr.write.encoder import Encoder, encoder_of


def encoder_for(metadata: Metadata, spec: ArraySpec) -> Encoder | str:
    """Return how the loops encode the chunks of an array, or why zarr-python has to."""
    if "\0" in spec.path:  # the loops would cut the name there, and write another file
        return "a name that no file can have is zarr-python's to refuse"
    order = "morton"
    if isinstance(metadata, ArrayV3Metadata):
        for codec in metadata.codecs:
            if isinstance(codec, ShardingCodec):
                order = getattr(codec, "subchunk_write_order", order)
    return encoder_of(spec, str(order))
