"""Decoding of single chunks by zarr-python's own codecs, for codecs that this package does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numcodecs.registry
import numpy as np
import numpy.typing as npt
from zarr.buffer import cpu, default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.core.array import create_codec_pipeline
from zarr.core.array_spec import ArrayConfig
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec
from zarr.core.buffer import BufferPrototype
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import sync
from zarr.registry import get_codec_class, get_pipeline_class

from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.metadata import ZARR_VERSION, Metadata


def zarr_chunk_decoder(
    spec: ArraySpec, prepare: Callable[[Metadata], Metadata]
) -> Callable[[memoryview], npt.NDArray[Any]]:
    """Return a function that decodes one inner chunk by zarr-python's codecs.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    prepare : callable
        Returns the array's metadata, with codecs perhaps replaced by others that decode to the same.

    Returns
    -------
    callable
        Takes the encoded bytes of a chunk in host memory. Returns an array of shape `spec.grid.chunk_shape` and dtype
        `spec.dtype` in host memory, which may be a view of these bytes. Raises whatever the codec raises. It is safe to
        call from several threads.
    """
    dtype = spec.numpy_dtype
    classes = _codec_classes(spec.metadata)
    codecs, _ = _zarr_pipeline(spec.metadata, cpu.buffer_prototype, classes, prepare)
    is_shard = any(isinstance(codec, ShardingCodec) for codec in codecs)

    def decode(encoded: memoryview) -> npt.NDArray[Any]:
        # An inner chunk may itself be a shard. zarr-python's `ShardingCodec` cuts a shard in buffers of the default
        # prototype, which zarr-python's settings choose, so the chunk must be in such a buffer.
        prototype = default_buffer_prototype() if is_shard else cpu.buffer_prototype
        pipeline, chunk_spec = _zarr_pipeline(spec.metadata, prototype, classes, prepare)
        buffer = prototype.buffer.from_bytes(encoded)
        (decoded,) = sync(pipeline.decode([(buffer, chunk_spec)]))
        if decoded is None:
            raise ValueError("the codec pipeline returned nothing")
        # A codec may return another dtype or byte order than that of the array. zarr-python converts it by assignment.
        return np.asarray(decoded.as_numpy_array()).astype(dtype, copy=False)

    return decode


@lru_cache(maxsize=64)
def _codec_names(document: str) -> tuple[str, ...]:
    """Return the names under which the codecs in a metadata document are registered."""
    data = json.loads(document)
    if data["zarr_format"] == 2:
        configurations = [*(data["filters"] or ()), data["compressor"]]
        return tuple(configuration["id"] for configuration in configurations if configuration)

    def names(codecs: list[Any]) -> Iterator[str]:
        for codec in codecs:
            yield codec["name"]
            yield from names(codec.get("configuration", {}).get("codecs", ()))

    return tuple(names(data["codecs"]))


def _codec_classes(document: str) -> tuple[object, ...]:
    """Return the classes that now stand for an array's codecs: registered, or chosen by zarr-python's settings."""
    classes: list[object] = []
    for name in _codec_names(document):
        classes.append(numcodecs.registry.codec_registry.get(name.removeprefix("numcodecs.")))
        with suppress(KeyError, ValueError):  # it is registered in numcodecs alone, or nowhere any more
            classes.append(get_codec_class(name))
    return tuple(classes)


@lru_cache(maxsize=64)
def _zarr_pipeline(
    document: str,
    prototype: BufferPrototype,
    classes: tuple[object, ...],  # noqa: ARG001  # part of the cache key: other classes need another pipeline
    prepare: Callable[[Metadata], Metadata],
) -> tuple[Any, ZarrChunkSpec]:
    """Return zarr-python's pipeline for the inner chunks of an array, and its description of a chunk.

    Each prototype needs a pipeline of its own: sharding codecs keep the prototype that they first decode with.
    """
    data = json.loads(document)
    config = ArrayConfig.from_dict({"order": data.get("order", "C")})
    if data["zarr_format"] == 2:
        v2 = prepare(ArrayV2Metadata.from_dict(data))
        assert isinstance(v2, ArrayV2Metadata)
        spec = v2.get_chunk_spec((), config, prototype)  # the same for all coordinates
        return create_codec_pipeline(v2), spec
    v3 = prepare(ArrayV3Metadata.from_dict(data))
    assert isinstance(v3, ArrayV3Metadata)
    spec = ZarrChunkSpec(
        shape=v3.chunks, dtype=v3.data_type, fill_value=v3.fill_value, config=config, prototype=prototype
    )
    pipeline = get_pipeline_class().from_codecs(v3.inner_codecs)
    # The codecs of the metadata have been evolved already. Evolving the pipeline, too, lets zarr-python's
    # `FusedCodecPipeline` decode without an event loop. Before 3.3, a pipeline would lose its codecs.
    if ZARR_VERSION >= (3, 3):
        pipeline = pipeline.evolve_from_array_spec(spec)
    return pipeline, spec
