"""Checks of compressors, with frames that the package contains, and of codecs of elements, against the host codecs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from xarray_gpuzarr.cuda.nvcomp_formats import fastest_format
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known_frames import KnownFrame, content, known_frames
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, Trial, WrongAnswerError, compare
from xarray_gpuzarr.decoders.host.chunk_codec import ChunkCodec
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesSpec,
    CompressorSpec,
    GzipSpec,
    PipelineSpec,
    ShuffleSpec,
    encoded_nbytes,
)
from xarray_gpuzarr.stored.element_codecs import (
    CastValueSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
    ScaleOffsetSpec,
)

_BYTES = BytesSpec(endian=None)
_NO_CAST = Cast(dtype="|u1")
_N_ELEMENTS = 1003
"""Number of elements in a chunk of a codec of elements other than a delta."""
_N_DELTA_ELEMENTS = 40_009
"""Number of elements in a chunk of a delta, enough for several blocks of threads to share the chunk."""


def compressor_check(spec: CompressorSpec, nbytes: int) -> Check:
    """Return the check of a compressor for chunks of `nbytes` decoded bytes."""
    name = _compressor_name(spec, nbytes)

    def run(workspace: Workspace) -> int:
        codec_name = name.partition(",")[0]  # without variants such as ", one byte" and ", looking ahead"
        frames_of_codec = known_frames()[codec_name]
        frames = [frame for frame in frames_of_codec if _compressor_name(spec, frame.nbytes) == name]
        n_compared = 0
        for length in sorted({frame.nbytes for frame in frames}):
            n_compared += _compare_decoded(workspace, spec, [frame for frame in frames if frame.nbytes == length])
        return n_compared

    return Check(name, run)


def _compressor_name(spec: CompressorSpec, nbytes: int) -> str:
    """Return the name of a compressor's check. Chunks whose lengths give the same name are decoded in the same way.

    Chunks of one byte have a check of their own: decoders get them wrong most often, and hardly any array has them.
    """
    if isinstance(spec, BloscSpec):
        return f"blosc {spec.cname.removesuffix('hc')}"
    name = fastest_format("gzip", nbytes) if isinstance(spec, GzipSpec) else str(spec)
    return f"{name}, one byte" if nbytes == 1 else name


def _compare_decoded(workspace: Workspace, spec: CompressorSpec, frames: Sequence[KnownFrame]) -> int:
    """Decode frames of equal decoded length on the device; return the number of bytes that were compared.

    Raises `WrongAnswerError` if bytes differ, or if the device has left a frame to the host: all are frames that it
    decodes.
    """
    nbytes = frames[0].nbytes
    codecs = PipelineSpec(array_to_bytes=_BYTES, bytes_to_bytes=(spec,))
    trial = Trial([frame.frame for frame in frames], dtype="|u1", chunk_shape=(nbytes,), codecs=codecs)
    result, n_by_host = trial.read_by_device(workspace, trial.box(...), _NO_CAST)
    chunks = result.reshape(-1, nbytes)
    wrong = [frame for frame, values in zip(frames, chunks, strict=True) if values.tobytes() != frame.decoded]
    if wrong:
        example = f"{wrong[0].nbytes} bytes of {wrong[0].content} by {wrong[0].writer}"
        raise WrongAnswerError(f"wrong bytes of {len(wrong)} of {len(frames)} chunks, such as {example}")
    if n_by_host:
        raise WrongAnswerError(f"{n_by_host} of {len(frames)} sound chunks of {nbytes} bytes were refused")
    return result.nbytes


def shuffle_check(elementsize: int) -> Check:
    """Return the check of numcodecs' shuffle of elements of `elementsize` bytes."""

    def run(workspace: Workspace) -> int:
        expected = content("waves", 4099 // elementsize * elementsize)
        shuffled = np.frombuffer(expected, np.uint8).reshape(-1, elementsize).T.tobytes()
        codecs = PipelineSpec(array_to_bytes=_BYTES, bytes_to_bytes=(ShuffleSpec(elementsize=elementsize),))
        trial = Trial([shuffled, shuffled], dtype="|u1", chunk_shape=(len(expected),), codecs=codecs)
        result, _ = trial.read_by_device(workspace, trial.box(...), _NO_CAST)
        if result.tobytes() != 2 * expected:
            raise WrongAnswerError("wrong bytes")
        return result.nbytes

    return Check(f"shuffle of {elementsize} bytes", run)


def element_check(spec: ElementSpec) -> Check:
    """Return the check of a codec of elements, whose oracle is the host codec.

    One check does for all scales, offsets and scalar maps, since the kernel takes these as arguments. It uses a small
    scale and a small offset, which no dtype overflows with, and no scalar map.
    """
    if isinstance(spec, FixedScaleOffsetSpec | ScaleOffsetSpec):
        spec = replace(spec, scale=2, offset=3)
    elif isinstance(spec, CastValueSpec):
        spec = replace(spec, scalar_map=())
    decoded = np.dtype(spec.decoded)
    n = _N_DELTA_ELEMENTS if isinstance(spec, DeltaSpec) else _N_ELEMENTS
    kind = str(spec).partition("(")[0]

    def run(workspace: Workspace) -> int:
        codecs = PipelineSpec(array_to_array=(spec,), array_to_bytes=_BYTES)
        codec = ChunkCodec(codecs, n * decoded.itemsize)
        chunks: list[bytes] = []
        expected = []
        for encoded in _encoded_chunks(spec, n):
            values = np.empty(n, decoded)
            try:
                codec.decode_into(memoryview(encoded), memoryview(values.view(np.uint8)))
            except FrameError:  # the host has no value for some of these elements, so they are no encoded chunk
                continue
            chunks.append(encoded)
            expected.append(values)
        trial = Trial(chunks, dtype=spec.decoded, chunk_shape=(n,), codecs=codecs)
        native = decoded.newbyteorder("=")
        result, _ = trial.read_by_device(workspace, trial.box(...), Cast(dtype=native.str))
        compare(result, np.concatenate(expected).astype(native))
        return result.nbytes

    rounding = f", {spec.rounding}" if isinstance(spec, CastValueSpec) else ""
    return Check(f"{kind} of {decoded.name} as {np.dtype(spec.encoded).name}{rounding}", run)


def _encoded_chunks(spec: ElementSpec, n: int) -> Iterator[bytes]:
    """Yield encoded chunks of `n` elements for a codec.

    They hold zeros, small numbers, scaled numbers, fractions of either sign, and arbitrary bits if elements are
    integers.
    """
    nbytes = encoded_nbytes(spec, n * np.dtype(spec.decoded).itemsize)
    assert nbytes is not None
    if isinstance(spec, PackBitsSpec):
        yield bytes([-n % 8]) + content("noise", nbytes - 1)  # the first byte is the number of unused bits
        return
    dtype = np.dtype(spec.encoded)
    number = np.arange(n)
    with np.errstate(all="ignore"):
        scaled = number % 16 * getattr(spec, "scale", 1)
        for values in (0 * number, number % 2, number % 16, scaled, 0.37 * number - 99):
            yield values.astype(dtype).tobytes()
        if dtype.kind in "iu":
            yield content("noise", nbytes)
