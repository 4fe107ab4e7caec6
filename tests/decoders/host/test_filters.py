"""Filters and checksums of the host against numcodecs and zarr-python, to the bit."""

import itertools

import numcodecs
import numpy as np
import pytest
from helpers.data.filter_cases import FLOATS, any_scaled_integers, by_numcodecs, noise
from helpers.data.registered_filters import decode_scale_offset
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.decoders.host.chunk_codec import strip_checksum
from xarray_gpuzarr.decoders.host.filters import decode_elements, unshuffle
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.stored.codecs import ChecksumSpec, ShuffleSpec, encoded_nbytes
from xarray_gpuzarr.stored.element_codecs import (
    AsTypeSpec,
    CastValueSpec,
    DeltaSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
    ScaleOffsetSpec,
)

REAL = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
COMPLEX = ("c8", "c16")
PAIRS = [*itertools.product(REAL, REAL), *itertools.product((*REAL, *COMPLEX), COMPLEX)]
"""(encoded, decoded)."""
ORDERS = [("<", "<"), (">", ">"), ("<", ">"), (">", "<")]


def decoded(spec, encoded):
    """Return what this package makes of encoded elements."""
    n = len(encoded) * np.dtype(spec.decoded).itemsize
    dst = bytearray(n)
    decode_elements(spec, memoryview(encoded.tobytes()), memoryview(dst))
    return bytes(dst)


@pytest.mark.parametrize("orders", ORDERS, ids="".join)
@pytest.mark.parametrize(("stored", "result"), PAIRS)
def test_astype_and_delta(stored, result, orders):
    stored, result = orders[0] + stored, orders[1] + result
    encoded = noise(stored, 20_001)

    astype = AsTypeSpec(encoded=stored, decoded=result)
    delta = DeltaSpec(encoded=stored, decoded=result)

    assert decoded(astype, encoded) == by_numcodecs(numcodecs.AsType(stored, result), encoded)
    assert decoded(delta, encoded) == by_numcodecs(numcodecs.Delta(result, stored), encoded)


SCALES = [(10, 0), (1, -3), (0.1, 2.5), (-7.3e-5, 1e6), (3, 0.5), (1e30, 100)]


@pytest.mark.parametrize(("scale", "offset"), SCALES)
@pytest.mark.parametrize(("stored", "result"), PAIRS)
def test_fixed_scale_offset(stored, result, scale, offset):
    encoded = noise(stored, 501)
    spec = FixedScaleOffsetSpec(encoded=encoded.dtype.str, decoded=result, scale=scale, offset=offset)
    codec = numcodecs.FixedScaleOffset(offset=offset, scale=scale, dtype=result, astype=stored)

    assert decoded(spec, encoded) == by_numcodecs(codec, encoded)


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_packbits(bits):
    values = np.array(bits)
    encoded = numcodecs.PackBits().encode(values)
    spec = PackBitsSpec(decoded="|b1", encoded="|u1")
    dst = bytearray(len(values))

    decode_elements(spec, memoryview(encoded), memoryview(dst))

    assert dst == values.tobytes()


def outcome(decode, *args, **keywords):
    """Return the bytes, or None if there are none."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(decode(*args, **keywords)).tobytes()
    except (ValueError, FrameError):
        return None


@any_scaled_integers
def test_scale_offset_of_integers(case):
    dtype = case.encoded.dtype.str
    spec = ScaleOffsetSpec(decoded=dtype, encoded=dtype, scale=case.scale.item(), offset=case.offset.item())

    assert outcome(lambda: np.frombuffer(decoded(spec, case.encoded), dtype)) == case.by_zarr()


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("scale", "offset"), SCALES[:-1])
def test_scale_offset_of_floats(dtype, order, scale, offset):
    with np.errstate(over="ignore"):
        scale, offset = np.dtype(dtype).type(scale), np.dtype(dtype).type(offset)
    encoded = noise(dtype, 3001)
    spec = ScaleOffsetSpec(decoded=dtype, encoded=order + dtype, scale=float(scale), offset=float(offset))

    found = decoded(spec, encoded.astype(order + dtype))

    assert found == outcome(decode_scale_offset, encoded, offset, scale, scale_repr=scale)


@pytest.mark.parametrize(
    ("stored", "result", "rules", "values", "expected"),
    [
        ("<i2", "<f4", {}, [1, -5], [1, -5]),
        (">i2", "<f4", {}, [1, -5], [1, -5]),
        ("<f8", "<i4", {"rounding": "towards-zero"}, [1.9, -1.9], [1, -1]),
        ("<f8", "<u1", {"out_of_range": "clamp"}, [300.0, -1.0], [255, 0]),
        ("<i4", "|u1", {"out_of_range": "wrap"}, [257, -1], [1, 255]),
        ("<i2", "<f4", {"scalar_map": (("-1", "NaN"), ("7", "0.5"))}, [-1, 7, 8], [np.nan, 0.5, 8]),
        ("<f4", "<i2", {"scalar_map": (("NaN", "-1"),)}, [np.nan, 8], [-1, 8]),
        ("<f8", "<u1", {}, [256.0], None),
        ("<f8", "<u1", {}, [np.nan], None),
    ],
)
def test_cast_value(stored, result, rules, values, expected):
    spec = CastValueSpec(
        encoded=stored,
        decoded=result,
        **{"rounding": "nearest-even", "out_of_range": None, "scalar_map": ()} | rules,
    )

    found = outcome(lambda: np.frombuffer(decoded(spec, np.array(values, stored)), result))

    assert found == (None if expected is None else np.array(expected, result).tobytes())


@pytest.mark.parametrize("elementsize", [2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 64, 100, 255, 256, 1000])
@pytest.mark.parametrize("n_elements", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 1000, 4099])
def test_shuffle(elementsize, n_elements):
    content = noise("u1", elementsize * n_elements)
    dst = bytearray(content.nbytes)

    unshuffle(
        ShuffleSpec(elementsize=elementsize),
        memoryview(numcodecs.Shuffle(elementsize).encode(content)),
        memoryview(dst),
    )

    assert dst == content.tobytes()


CHECKSUMS = {
    "crc32": lambda at, _: numcodecs.CRC32(location=at),
    "crc32c": lambda at, _: numcodecs.checksum32.CRC32C(location=at),
    "adler32": lambda at, _: numcodecs.Adler32(location=at),
    "fletcher32": lambda at, _: numcodecs.Fletcher32(),
    "jenkins_lookup3": lambda at, seed: numcodecs.JenkinsLookup3(initval=seed),
}
PLACED_ANYWHERE = ("crc32", "crc32c", "adler32")


@pytest.mark.parametrize("at", ["start", "end"])
@pytest.mark.parametrize("algorithm", CHECKSUMS)
@given(content=st.binary(min_size=1, max_size=2000), seed=st.integers(0, 2**32 - 1), bit=st.integers(0, 2**20))
def test_checksum(algorithm, at, content, seed, bit):
    seed = seed if algorithm == "jenkins_lookup3" else 0
    spec = ChecksumSpec(algorithm=algorithm, at_start=at == "start" and algorithm in PLACED_ANYWHERE, seed=seed)
    encoded = bytearray(CHECKSUMS[algorithm](at, seed).encode(np.frombuffer(content, np.uint8)))

    assert strip_checksum(spec, memoryview(encoded)) == content

    encoded[bit // 8 % len(encoded)] ^= 1 << bit % 8
    with pytest.raises(FrameError, match="stored"):
        strip_checksum(spec, memoryview(encoded))


@pytest.mark.parametrize("nbytes", range(4))
@pytest.mark.parametrize("algorithm", CHECKSUMS)
def test_too_short_for_a_checksum(algorithm, nbytes):
    with pytest.raises(FrameError, match="too short"):
        strip_checksum(ChecksumSpec(algorithm=algorithm), memoryview(bytes(nbytes)))


ELEMENTS = [
    AsTypeSpec(encoded="<i2", decoded="<i4"),
    DeltaSpec(encoded="<i2", decoded="<i4"),
    FixedScaleOffsetSpec(encoded="<i2", decoded="<i4", scale=1, offset=0),
    ScaleOffsetSpec(encoded="<i4", decoded="<i4", scale=1, offset=0),
    CastValueSpec(encoded="<i2", decoded="<i4", rounding="nearest-even", out_of_range=None, scalar_map=()),
    PackBitsSpec(encoded="|u1", decoded="|b1"),
]


@pytest.mark.parametrize("spec", ELEMENTS, ids=str)
@pytest.mark.parametrize("more", [-4, -2, -1, 1, 2, 4, 100])
def test_elements_of_another_number(spec, more):
    nbytes = encoded_nbytes(spec, 80) + more

    with pytest.raises(FrameError, match=f"{nbytes} encoded bytes"):
        decode_elements(spec, memoryview(bytes(nbytes)), memoryview(bytearray(80)))


@pytest.mark.parametrize("unused", [0, 1, 7, 8, 255])
def test_packbits_that_leave_out_other_bits(unused):
    with pytest.raises(FrameError, match=f"{unused} unused bits"):
        decode_elements(ELEMENTS[-1], memoryview(bytes([unused, 0, 0])), memoryview(bytearray(10)))


@pytest.mark.parametrize(("nbytes", "decoded_nbytes"), [(8, 12), (12, 8), (10, 10)])
def test_shuffled_bytes_that_are_no_whole_elements(nbytes, decoded_nbytes):
    with pytest.raises(FrameError, match=f"{nbytes} bytes"):
        unshuffle(ShuffleSpec(elementsize=4), memoryview(bytes(nbytes)), memoryview(bytearray(decoded_nbytes)))
