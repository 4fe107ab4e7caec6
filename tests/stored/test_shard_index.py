"""Shard indexes: the right columns, or a `ShardIndexError`; never anything else."""

from itertools import combinations
from unittest.mock import patch

import numpy as np
import pytest
from helpers.profiles import many
from helpers.stores.shards import MISSING, index_bytes
from hypothesis import example, given
from hypothesis import strategies as st

from xarray_gpuzarr import ShardIndexError
from xarray_gpuzarr.native.library import loops
from xarray_gpuzarr.stored.shard_index import MISSING as NO_BYTES
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec, decode_shard_index

SHARD_NBYTES = 1000


def spec_of(n_chunks, **changes):
    return ShardIndexSpec(**{"location": "end", "endian": "little", "checksum": True, "n_chunks": n_chunks} | changes)


def decode(encoded, spec, shard_nbytes=SHARD_NBYTES):
    """Decode an index by the compiled loops and by NumPy, which have to agree."""
    found = []
    for compiled in (loops, lambda: None):
        with patch("xarray_gpuzarr.stored.shard_index.loops", compiled):
            try:
                found.append(
                    decode_shard_index(encoded, spec, shard_nbytes=shard_nbytes, shard_name="'c/0' of array '/t'")
                )
            except ShardIndexError as err:
                found.append(err)
    index, other = found
    if isinstance(index, ShardIndexError):
        assert str(index) == str(other)
        raise index
    np.testing.assert_array_equal([index.offset, index.nbytes], [other.offset, other.nbytes])
    return index


specs = st.builds(
    ShardIndexSpec,
    n_chunks=st.integers(0, 5),
    location=st.sampled_from(["start", "end"]),
    endian=st.sampled_from(["little", "big"]),
    checksum=st.booleans(),
)
entries = st.tuples(st.integers(0, 1200), st.integers(0, 200)) | st.just((MISSING, MISSING))
wild_numbers = st.integers(0, MISSING) | st.sampled_from([0, MISSING, MISSING - 1, 2**63, 2**63 - 1, 2**62])


def is_sound(table, spec, shard_nbytes):
    """Say whether an index can be true, by comparing every pair of ranges."""
    floor = spec.nbytes * (spec.location == "start")
    ceiling = shard_nbytes - spec.nbytes * (spec.location == "end")
    ranges = {(o, o + n) for o, n in table if (o, n) != (MISSING, MISSING)}
    apart = all(a_end <= b or b_end <= a for (a, a_end), (b, b_end) in combinations(sorted(ranges), 2))
    return apart and all(floor <= start and end <= ceiling for start, end in ranges)


@pytest.mark.parametrize(
    ("table", "found"),
    [
        pytest.param([(900, 200), (0, 1)], "900", id="past the end"),
        pytest.param([(970, 1), (0, 1)], "970", id="inside the index"),
        pytest.param([(2**63, 1), (0, 1)], str(2**63), id="offset beyond 63 bits"),
        pytest.param([(0, 2**63), (0, 1)], str(2**63), id="length beyond 63 bits"),
        pytest.param([(MISSING - 4, 10), (0, 1)], str(MISSING - 4), id="sum that wraps around"),
        pytest.param([(MISSING, 10), (0, 1)], str(MISSING), id="half of the missing mark"),
        pytest.param([(10, MISSING), (0, 1)], str(MISSING), id="the other half"),
        pytest.param([(0, 2**62), (0, 1)], str(2**62), id="absurd length"),
        pytest.param([(0, 100), (99, 10)], "overlap", id="overlap"),
        pytest.param([(0, 100), (10, 10)], "overlap", id="one inside another"),
        pytest.param([(0, 100), (0, 99)], "overlap", id="same start"),
        pytest.param([(0, 100), (1, 99)], "overlap", id="same end"),
    ],
)
@pytest.mark.parametrize("checksum", [False, True])
def test_range_that_cannot_be_true_is_refused(table, found, checksum):
    spec = spec_of(2, checksum=checksum)

    with pytest.raises(ShardIndexError) as caught:
        decode(index_bytes(table, checksum=checksum), spec)

    assert found in caught.value.found
    assert "'c/0' of array '/t'" in str(caught.value)


def test_chunk_inside_an_index_at_the_start_is_refused():
    spec = spec_of(2, location="start")

    with pytest.raises(ShardIndexError, match="outside"):
        decode(index_bytes([(35, 10), (MISSING, MISSING)]), spec)


@pytest.mark.parametrize("location", ["start", "end"])
def test_ranges_that_touch_the_borders_are_accepted(location):
    spec = spec_of(2, location=location)
    table = {"start": [(36, 10), (46, 954)], "end": [(0, 10), (10, 954)]}[location]

    assert decode(index_bytes(table), spec).nbytes.tolist() == [10, 954]


@pytest.mark.parametrize("nbytes", [*range(36), 37])
def test_index_of_another_length_is_refused(nbytes):
    encoded = index_bytes([(0, 10), (10, 10)]) + b"\0"

    with pytest.raises(ShardIndexError, match=f"{nbytes} bytes where 36"):
        decode(encoded[:nbytes], spec_of(2))


@many
@given(st.integers(0, 8 * 36 - 1))
def test_checksum_finds_every_flipped_bit(bit):
    encoded = bytearray(index_bytes([(0, 10), (10, 10)]))
    encoded[bit // 8] ^= 1 << bit % 8

    with pytest.raises(ShardIndexError, match="checksum"):
        decode(bytes(encoded), spec_of(2))


@many
@given(specs, st.binary(max_size=90))
def test_random_bytes_are_refused_or_sound(spec, encoded):
    try:
        index = decode(encoded, spec)
    except ShardIndexError:
        return
    stored = index.nbytes != NO_BYTES
    table = zip(index.offset[stored].tolist(), index.nbytes[stored].tolist(), strict=True)
    assert is_sound(table, spec, SHARD_NBYTES)


@many
@given(specs, st.data())
def test_index_is_accepted_just_if_it_can_be_true(spec, data):
    table = data.draw(st.lists(entries, min_size=spec.n_chunks, max_size=spec.n_chunks))
    encoded = index_bytes(table, endian=spec.endian, checksum=spec.checksum)

    try:
        index = decode(encoded, spec)
    except ShardIndexError:
        assert not is_sound(table, spec, SHARD_NBYTES)
        return
    assert is_sound(table, spec, SHARD_NBYTES)
    expected = [(0, NO_BYTES) if entry == (MISSING, MISSING) else entry for entry in table]
    assert list(zip(index.offset.tolist(), index.nbytes.tolist(), strict=True)) == expected


@pytest.mark.parametrize("n", [2, 300, 5000])
def test_chunks_follow_each_other_in_any_order(n):
    rng = np.random.default_rng(n)
    nbytes, stored = rng.integers(1, 70_000, n), rng.permutation(n)
    table = np.empty((n, 2), np.uint64)
    table[stored] = np.stack([nbytes.cumsum() - nbytes, nbytes], axis=1)
    table[rng.random(n) < 0.2] = MISSING
    spec, shard_nbytes = spec_of(n), int(nbytes.sum()) + spec_of(n).nbytes

    index = decode(index_bytes(table.tolist()), spec, shard_nbytes)

    found = np.stack([np.where(index.nbytes < 0, NO_BYTES, index.offset), index.nbytes], axis=1).view(np.uint64)
    np.testing.assert_array_equal(found, table)
    table[stored[:2]] = [[0, nbytes[0] + 1], [nbytes[0], 1]]
    with pytest.raises(ShardIndexError, match="overlap"):
        decode(index_bytes(table.tolist()), spec, shard_nbytes)


@many
@given(st.lists(st.tuples(wild_numbers, wild_numbers), min_size=1, max_size=4))
@example([(0, MISSING), (MISSING, 0)])
@example([(2**63, 2**63)])
def test_wild_numbers_without_a_known_length_never_wrap(table):
    try:
        index = decode(index_bytes(table), spec_of(len(table)), shard_nbytes=None)
    except ShardIndexError:
        return
    assert (index.offset >= 0).all()
    assert (index.nbytes >= NO_BYTES).all()
    assert (index.offset + np.maximum(index.nbytes, 0) >= 0).all()
