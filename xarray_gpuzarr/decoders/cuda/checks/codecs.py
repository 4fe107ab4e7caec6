"""Checks of compressors, by frames that the package carries, and of filters, by values that NumPy filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from xarray_gpuzarr.cuda.nvcomp import quickest
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known import KnownFrame, content, known_frames
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, Trial, WrongAnswerError, compare
from xarray_gpuzarr.decoders.host.chunk_codec import ChunkCodec
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesSpec,
    CastValueSpec,
    CompressorSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    GzipSpec,
    PackBitsSpec,
    PipelineSpec,
    ScaleOffsetSpec,
    ShuffleSpec,
    encoded_nbytes,
)

_BYTES = BytesSpec(endian=None)
_SEEN = Cast(dtype="|u1")
_N_ELEMENTS = 1003
"""Number of elements in a filter's chunk."""
_N_SUMMED = 40_009
"""Number of elements in a chunk of a delta, so that several blocks of threads share it."""


def compressor(spec: CompressorSpec, nbytes: int) -> Check:
    """Return the check of a compressor of chunks of so many decoded bytes."""
    name = compressor_name(spec, nbytes)

    def run(workspace: Workspace) -> int:
        frames = [f for f in known_frames()[name.partition(",")[0]] if compressor_name(spec, f.nbytes) == name]
        lengths = sorted({f.nbytes for f in frames})
        return sum(_decode(workspace, spec, [f for f in frames if f.nbytes == length]) for length in lengths)

    return Check(name, run)


def compressor_name(spec: CompressorSpec, nbytes: int) -> str:
    """Return the name of the check of a compressor, for chunks of so many decoded bytes."""
    if isinstance(spec, BloscSpec):
        return f"blosc {spec.cname.removesuffix('hc')}"
    name = quickest("gzip", nbytes) if isinstance(spec, GzipSpec) else str(spec)
    return f"{name}, one byte" if nbytes == 1 else name  # which hardly an array has, and decoders get wrong most


def _decode(workspace: Workspace, spec: CompressorSpec, frames: Sequence[KnownFrame]) -> int:
    nbytes = frames[0].nbytes
    codecs = PipelineSpec(array_to_bytes=_BYTES, bytes_to_bytes=(spec,))
    trial = Trial([f.frame for f in frames], dtype="|u1", chunk_shape=(nbytes,), codecs=codecs)
    result, n_left = trial.by_device(workspace, trial.box(...), _SEEN)
    wrong = [f for f, values in zip(frames, result.reshape(-1, nbytes), strict=True) if values.tobytes() != f.decoded]
    if wrong:
        example = f"{wrong[0].nbytes} bytes of {wrong[0].content} by {wrong[0].writer}"
        raise WrongAnswerError(f"wrong bytes of {len(wrong)} of {len(frames)} chunks, such as {example}")
    if n_left:
        raise WrongAnswerError(f"{n_left} of {len(frames)} chunks of {nbytes} bytes are said not to decode, and do")
    return result.nbytes


def shuffle(elementsize: int) -> Check:
    """Return the check of numcodecs' shuffle of elements of so many bytes."""

    def run(workspace: Workspace) -> int:
        expected = content("waves", 4099 // elementsize * elementsize)
        shuffled = np.frombuffer(expected, np.uint8).reshape(-1, elementsize).T.tobytes()
        codecs = PipelineSpec(array_to_bytes=_BYTES, bytes_to_bytes=(ShuffleSpec(elementsize=elementsize),))
        trial = Trial([shuffled, shuffled], dtype="|u1", chunk_shape=(len(expected),), codecs=codecs)
        result, _ = trial.by_device(workspace, trial.box(...), _SEEN)
        if result.tobytes() != 2 * expected:
            raise WrongAnswerError("wrong bytes")
        return result.nbytes

    return Check(f"shuffle of {elementsize} bytes", run)


def elements(spec: ElementSpec) -> Check:
    """Return the check of a codec of elements, with numbers for which every dtype has values: its kernel has others."""
    if isinstance(spec, FixedScaleOffsetSpec | ScaleOffsetSpec):
        spec = replace(spec, scale=2, offset=3)
    elif isinstance(spec, CastValueSpec):
        spec = replace(spec, scalar_map=())
    decoded, n = np.dtype(spec.decoded), _N_SUMMED if isinstance(spec, DeltaSpec) else _N_ELEMENTS
    kind = str(spec).partition("(")[0]

    def run(workspace: Workspace) -> int:
        codecs = PipelineSpec(array_to_array=(spec,), array_to_bytes=_BYTES)
        codec, pairs = ChunkCodec(codecs, n * decoded.itemsize), []
        for encoded in _encoded(spec, n):
            values = np.empty(n, decoded)
            try:
                codec.decode_into(memoryview(encoded), memoryview(values.view(np.uint8)))
            except FrameError:  # this filter has no value for some of these elements
                continue
            pairs.append((encoded, values))
        trial = Trial([encoded for encoded, _ in pairs], dtype=spec.decoded, chunk_shape=(n,), codecs=codecs)
        native = decoded.newbyteorder("=")
        result, _ = trial.by_device(workspace, trial.box(...), Cast(dtype=native.str))
        compare(result, np.concatenate([values for _, values in pairs]).astype(native))
        return result.nbytes

    rounded = f", {spec.rounding}" if isinstance(spec, CastValueSpec) else ""
    return Check(f"{kind} of {decoded.name} as {np.dtype(spec.encoded).name}{rounded}", run)


def _encoded(spec: ElementSpec, n: int) -> Iterator[bytes]:
    """Yield chunks that a filter may decode: nothing but zeros, small numbers, and any."""
    nbytes = encoded_nbytes(spec, n * np.dtype(spec.decoded).itemsize)
    assert nbytes is not None
    if isinstance(spec, PackBitsSpec):
        yield bytes([-n % 8]) + content("noise", nbytes - 1)
        return
    dtype, number = np.dtype(spec.encoded), np.arange(n)
    with np.errstate(all="ignore"):
        scaled = number % 16 * getattr(spec, "scale", 1)
        for values in (0 * number, number % 2, number % 16, scaled, 0.37 * number - 99):
            yield values.astype(dtype).tobytes()
        if dtype.kind in "iu":
            yield content("noise", nbytes)
