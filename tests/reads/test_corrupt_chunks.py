"""Damaged chunks of every codec: an error that names array, object, chunk and codec, never a wrong number."""

import gzip

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zstandard
from helpers.compare import assert_same_bits
from helpers.data.corpus import V2_CODECS, V2_FILTERS, V3_CODECS, V3_CODECS_BY_ZARR, V3_FILTERS, counting, write
from helpers.data.damage import (
    DATA,
    KEY,
    assert_error_or,
    assert_only_the_first_shard_is_lost,
    changed_chunk,
    damaged,
    explained,
    read,
)
from helpers.every_pair import SEED, usually
from helpers.stores.fakes import put, take
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError

pytestmark = [pytest.mark.every_decoder, pytest.mark.both_ways, pytest.mark.doubtful_frames, pytest.mark.timeout(60)]

BAD_CHUNKS = {
    "empty": lambda chunk: b"",
    "one byte": lambda chunk: chunk[:1],
    "zeros": lambda chunk: bytes(len(chunk)),
    "one byte less": lambda chunk: chunk[:-1],
    "another chunk's length": lambda chunk: chunk[: len(chunk) // 2],
    "text": lambda chunk: b"<html>404 not found</html>",
}
V3, V2 = V3_CODECS | V3_FILTERS, V2_CODECS | V2_FILTERS
BULK = [*V3_CODECS]
BLOSC = [codecs for codecs in BULK if "blosc" in codecs]
"""Of which every third flips a bit of the header, which all have alike."""


NOTICED = [damage for damage in BAD_CHUNKS if damage != "zeros"]
"""What every codec notices: zeros are valid elements."""


def notice_zeros(table, *others):
    """Leave out those of which zeros are elements, and their Fletcher checksum is zero."""
    return [codecs for codecs in table if codecs not in others]


def assert_damage_of_a_shard_is_told(memory, codecs, damage):
    array = damaged(memory, changed_chunk(BAD_CHUNKS[damage]), **V3[codecs])
    last_codec = codecs.split("-")[0].split("+")[-1].removeprefix("numcodecs.").replace("big", "bytes")

    with explained(CorruptChunkError, "'/a/t'", KEY, "chunk (1, 1)", last_codec if codecs in V3_CODECS else "expected"):
        read(array)
    assert_only_the_first_shard_is_lost(array)
    assert_same_bits(read(array, (slice(0, 2), slice(0, 3))), DATA[:2, :3])


@pytest.mark.every_value
@pytest.mark.parametrize("damage", NOTICED)
@pytest.mark.parametrize("codecs", V3)
def test_damaged_chunk_of_a_shard(memory, codecs, damage):
    assert_damage_of_a_shard_is_told(memory, codecs, damage)


ELEMENTS = ("bytes", "transpose", "big-endian", "shuffle", "delta", "fletcher32")


@pytest.mark.parametrize("codecs", notice_zeros(V3, *ELEMENTS))
def test_chunk_of_zeros_in_a_shard(memory, codecs):
    assert_damage_of_a_shard_is_told(memory, codecs, "zeros")


def assert_damaged_v2_chunk_is_told(local, codecs, damage):
    array = write(local, DATA, name="a/t", chunks=(4, 12), zarr_format=2, **V2[codecs])
    put(local, "a/t/0.0", BAD_CHUNKS[damage](take(local, "a/t/0.0")))

    with explained(CorruptChunkError, "'/a/t'", "a/t/0.0", "chunk (0, 0)", *["expected"] * (codecs in V2_FILTERS)):
        read(array)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("damage", NOTICED)
@pytest.mark.parametrize("codecs", V2)
def test_damaged_v2_chunk(local, codecs, damage):
    assert_damaged_v2_chunk_is_told(local, codecs, damage)


@pytest.mark.parametrize("codecs", notice_zeros(V2_CODECS, "none", "order-F"))
def test_v2_chunk_of_zeros(local, codecs):
    assert_damaged_v2_chunk_is_told(local, codecs, "zeros")


@pytest.mark.parametrize("codecs", V3_CODECS_BY_ZARR)
def test_damaged_chunk_that_zarr_decodes(memory, codecs):
    array = damaged(memory, changed_chunk(lambda chunk: b"nonsense"), **V3_CODECS_BY_ZARR[codecs])

    with explained(CorruptChunkError, "'/a/t'", KEY, "chunk (1, 1)"):
        read(array)
    assert_only_the_first_shard_is_lost(array)


ENCODE = {
    "bytes": bytes,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "numcodecs.zlib": numcodecs.Zlib().encode,
    "numcodecs.lz4": numcodecs.LZ4().encode,
    "blosc-lz4-shuffle": numcodecs.Blosc(cname="lz4").encode,
    "crc32c": lambda raw: raw + google_crc32c.value(raw).to_bytes(4, "little"),
}


@pytest.mark.parametrize("nbytes", [0, 1, 23, 25, 48, 5000])
@pytest.mark.parametrize("codecs", ENCODE)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_chunk_of_another_decoded_length(request, kind, codecs, nbytes):
    encoded = ENCODE[codecs](bytes(nbytes))
    array = damaged(request.getfixturevalue(kind), changed_chunk(lambda _chunk: bytes(encoded)), **V3_CODECS[codecs])

    with explained(CorruptChunkError, "24", "chunk (1, 1)"):
        read(array)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("nbytes", [0, 1, 191, 193, 400])
@pytest.mark.parametrize("codecs", ["bytes", "crc32c"])
def test_unsharded_object_of_another_length(store, codecs, nbytes):
    array = write(store, DATA, name="a/t", chunks=(4, 12), **V3_CODECS[codecs])
    put(store, KEY, ENCODE[codecs](bytes(nbytes)))

    with explained(CorruptChunkError, "192", "chunk (0, 0)", KEY):
        read(array)
    assert_only_the_first_shard_is_lost(array)


def one_chunk(codecs):
    """Return an array of one compressible chunk, its store and its key."""
    store = MemoryStore()
    data = np.repeat(counting((40,)), 5).reshape(10, 20)
    return write(store, data, name="t", chunks=(10, 20), **V3[codecs]), store, data


def outcomes(codecs, mutants):
    """Read every mutant of the chunk: how many gave the right numbers, other numbers, an error."""
    array, store, data = one_chunk(codecs)
    counts = {"right": 0, "wrong": 0, "error": 0}
    for mutant in mutants(take(store, "t/c/0/0"), codecs):
        put(store, "t/c/0/0", mutant)
        try:
            right = np.array_equal(read(array), data)
        except CorruptChunkError:
            counts["error"] += 1
        else:
            counts["right" if right else "wrong"] += 1
    return counts


def flipped(chunk, bit):
    return chunk[: bit // 8] + bytes([chunk[bit // 8] ^ 1 << bit % 8]) + chunk[bit // 8 + 1 :]


def bits_flipped(chunk, codecs):
    """Flip every bit of the header, and some others, of every session others."""
    n_bits = 8 * len(chunk)
    step = usually(3, full=1) if codecs in BLOSC else 1
    header = range([*V3].index(codecs) % step, min(n_bits, usually(96, full=256)), step)
    stride = n_bits // usually(36, full=300) + 1
    return [flipped(chunk, bit) for bit in sorted({*header, *range(SEED % stride, n_bits, stride)})]


def every_truncation(chunk, _codecs):
    stride = len(chunk) // usually(25, full=200) + 1
    return [chunk[:at] for at in {0, *range(SEED % stride, len(chunk), stride), len(chunk) - 1}]


CHECKED = [
    *("zstd-checksum", "gzip", "numcodecs.gzip", "numcodecs.zlib"),
    *("crc32c", "zstd+crc32c", "crc32c+zstd", "crc32c+crc32c"),
    *(name for name in V3_FILTERS if any(c in name for c in ("crc", "adler", "fletcher", "jenkins", "gzip", "zlib"))),
]
UNCHECKED = [c for c in BULK if c not in CHECKED]


@pytest.mark.every_value
@pytest.mark.parametrize(
    ("codecs", "mutants", "n_errors_each"),
    [*((codecs, bits_flipped, 1) for codecs in CHECKED), *((codecs, every_truncation, 10) for codecs in BULK)],
)
def test_cut_chunks_and_flipped_bits_below_a_checksum_never_give_other_numbers(codecs, mutants, n_errors_each):
    counts = outcomes(codecs, mutants)

    assert counts["wrong"] == 0
    assert counts["error"] > n_errors_each * counts["right"]


@pytest.mark.every_value
@pytest.mark.parametrize("codecs", UNCHECKED)
def test_flipped_bits_give_numbers_or_a_package_error(codecs):
    assert sum(outcomes(codecs, bits_flipped).values()) >= 48


@pytest.mark.every_value
@pytest.mark.parametrize("codecs", BULK)
@given(data=st.data())
def test_random_bytes_instead_of_a_chunk_give_a_package_error_or_numbers(codecs, data):
    array, store, _ = one_chunk(codecs)
    chunk = take(store, "t/c/0/0")
    at = data.draw(st.integers(0, len(chunk)))
    put(store, "t/c/0/0", chunk[:at] + data.draw(st.binary(max_size=40)))

    assert_error_or(array, lambda got: got.shape == (10, 20))
