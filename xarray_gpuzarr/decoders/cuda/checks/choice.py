"""Which checks the reads of an array rest on: one for each thing that can fail by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.cuda.checks.basics import COPIES, MOVES, SUMS
from xarray_gpuzarr.decoders.cuda.checks.codecs import compressor, elements, shuffle
from xarray_gpuzarr.decoders.cuda.checks.placing import placing
from xarray_gpuzarr.decoders.cuda.checks.trial import Check
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    AsTypeSpec,
    BloscSpec,
    CompressorSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    GzipSpec,
    Lz4Spec,
    PackBitsSpec,
    ZlibSpec,
    ZstdSpec,
)


@lru_cache(maxsize=256)
def checks_of(spec: ArraySpec, cast: Cast, *, points: bool) -> tuple[Check, ...]:
    """Return what reads of an array rest on.

    Parameters
    ----------
    spec : ArraySpec
        One that the device decodes.
    cast : Cast
    points : bool
        Whether single elements are read, rather than boxes.
    """
    chain = chain_of(spec)
    assert not isinstance(chain, str)
    checks = [COPIES, MOVES, SUMS]
    if chain.compressor is not None:
        checks.append(compressor(chain.compressor, chain.inner_nbytes))
    if chain.shuffle is not None:
        checks.append(shuffle(chain.shuffle.elementsize))
    checks += [elements(codec) for codec in spec.codecs.stages if isinstance(codec, ElementSpec)]
    return (*checks, placing(spec.dtype, cast, points=points))


def usual_checks() -> Iterator[Check]:
    """Yield what reads of most stores rest on: all codecs, and the filters and conversions that are met most."""
    yield from (COPIES, MOVES, SUMS)
    yield from (compressor(spec, nbytes) for spec, nbytes in _COMPRESSORS)
    yield from map(shuffle, (2, 4, 8))
    yield from map(elements, _FILTERS)
    for dtype in ("|u1", "<i2", "<f4", "<f8", ">f4"):
        yield placing(dtype, Cast(dtype=np.dtype(dtype).newbyteorder("=").str), points=False)
    packed = [(stored, result) for stored in ("<i2", "|u1") for result in ("<f4", "<f8")]
    for stored, result in (*packed, ("<f4", "<f4"), ("<f8", "<f8")):
        yield placing(stored, Cast(dtype=result, mask=(7.0,), scale=0.5, offset=-3.0), points=False)
    yield placing("<f4", Cast(dtype="<f4"), points=True)


_COMPRESSORS: tuple[tuple[CompressorSpec, int], ...] = (
    *((spec, nbytes) for spec in (ZstdSpec(), Lz4Spec(), GzipSpec(), ZlibSpec()) for nbytes in (2**10, 1)),
    (GzipSpec(), 2**20),
    *((BloscSpec(cname=n, shuffle="shuffle", typesize=4), 2**10) for n in ("lz4", "zstd", "blosclz", "zlib", "snappy")),
)
_FILTERS: tuple[ElementSpec, ...] = (
    DeltaSpec(decoded="<i2", encoded="<i2"),
    DeltaSpec(decoded="<i4", encoded="<i4"),
    DeltaSpec(decoded="<f4", encoded="<f4"),
    FixedScaleOffsetSpec(decoded="<f8", encoded="<i2", scale=10, offset=273),
    AsTypeSpec(decoded="<f4", encoded="<f8"),
    PackBitsSpec(decoded="|b1", encoded="|u1"),
)
