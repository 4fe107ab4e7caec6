"""What the compiled loops do to elements, against NumPy: every pair of dtypes, masks, factors, filters, to the bit."""

import itertools
from random import Random

import numcodecs.zarr3 as zn
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import write
from helpers.data.ways_cases import numpy_cast
from helpers.every_pair import SEED, usually
from helpers.loops import changed, rows_taken, without_loops
from helpers.stores.fakes import put, take
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.decoders.host.native_program import native_program
from xarray_gpuzarr.native import library
from xarray_gpuzarr.read import read, stored_array
from xarray_gpuzarr.read.reading import read_points
from xarray_gpuzarr.stored.cf import Cast

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.filterwarnings("ignore")]

DTYPES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
N = 3000
"""Elements: some blocks of the loops, and a rest."""


def any_bits(dtype: str, rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Return elements of any bits, the extreme ones among them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(dtype)
    found = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype).copy()
    small = rng.integers(-100, 100, n // 2).astype("f8")
    if dtype.kind == "f":
        found[n // 4 : n // 2] = rng.integers(-5000, 5000, n // 2 - n // 4)  # some lie between two of half the bytes
    found[-(n // 2) :] = np.abs(small).astype(dtype) if dtype.kind == "u" else small.astype(dtype)
    return found


def loops_give(data: np.ndarray, cast: Cast, key=slice(None), **keywords) -> np.ndarray:
    """Return what the loops make of stored elements; none of the chunks is decoded in Python."""
    array = write(MemoryStore(), data, chunks=(1500,), shards=(3000,), config={"write_empty_chunks": True}, **keywords)
    with rows_taken() as taken:
        found = read(stored_array(array, cast), key, HostDecoder())
    assert taken.n_rows == 2
    return found


def is_known(stored: str, cast: Cast) -> bool:
    array = zarr.create_array(MemoryStore(), shape=(1,), dtype=stored, compressors=None)
    return native_program(stored_array(array).spec.codecs, 8, np.dtype(stored), cast) is not None


def converts(stored: str, decoded: str) -> bool:
    """Say whether C has one answer for every element: not for fractions, or infinities, as integers."""
    of, to = stored[0], decoded[0]
    return not (of in "fc" and to in "iu") and not (of == "c" and to != "c")


@pytest.mark.parametrize(("stored", "decoded"), [*itertools.product(DTYPES, DTYPES)])
def test_every_pair_of_dtypes(stored, decoded):
    assert is_known(stored, Cast(dtype=decoded)) == converts(stored, decoded)
    if converts(stored, decoded):
        data = any_bits(stored, np.random.default_rng(SEED))
        assert_same_bits(loops_give(data, Cast(dtype=np.dtype(decoded).str)), data.astype(decoded))


@pytest.mark.parametrize("dtype", ["i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_the_other_byte_order(dtype):
    data = any_bits(dtype, np.random.default_rng(SEED))

    for decoded in (np.dtype(dtype).str, np.dtype(dtype).newbyteorder(">").str):
        cast = Cast(dtype=decoded)
        assert_same_bits(loops_give(data, cast, serializer=BytesCodec(endian="big")), data.astype(decoded))


def draw_cast(rng: Random, stored: str) -> Cast:
    """Return a mask of up to six values, a factor, a summand, or some of them."""
    decoded = rng.choice(["f4", "f8"] if stored[0] != "f" else [d for d in ("f2", "f4", "f8") if d >= stored])
    view = f"u{stored[1:]}" if stored[0] == "i" and rng.random() < 0.3 else None
    numbers = [0, 1, -1, 7, -99, 0.5, 1e30, -32768, 255, 65504]
    if decoded == "f2":
        numbers = [n for n in numbers if abs(n) < 60000]
    mask = tuple(rng.sample(numbers, rng.choice([0, 1, 1, 2, 4, 6])))
    scale = rng.choice([None, 0.01, -3, 2**0.5, 0, 1e-40, float("inf")])
    offset = rng.choice([None, 273.15, -1, 0.1, -0.0])
    return Cast(dtype=np.dtype(decoded).str, view=view, mask=mask, scale=scale, offset=offset)


@pytest.mark.parametrize("number", range(usually(40, full=600)))
def test_masks_factors_and_summands(number):
    rng = Random(f"{SEED} {number}")
    stored = rng.choice([d for d in DTYPES if d[0] in "iuf" and d != "b1"])
    cast, data = draw_cast(rng, stored), any_bits(stored, np.random.default_rng(rng.getrandbits(32)))

    assert_same_bits(loops_give(data, cast), numpy_cast(cast, data))


@pytest.mark.parametrize(
    ("dtype", "cast"),
    [
        pytest.param("c8", Cast(dtype="<c16", mask=(4,), offset=1.5 - 2j), id="complex numbers"),
        pytest.param("f2", Cast(dtype="<f2", mask=(4,), scale=0.7), id="halves"),
    ],
)
def test_unusual_dtypes_are_masked_and_moved(dtype, cast):
    data = any_bits(dtype, np.random.default_rng(SEED))
    data[::7] = 4

    assert_same_bits(loops_give(data, cast), numpy_cast(cast, data))


@pytest.mark.parametrize(("dtype", "scale"), [("f4", float("nan")), ("f4", 2j), ("c8", 2.0)])
def test_numbers_that_are_left_to_numpy(dtype, scale):
    assert not is_known(dtype, Cast(dtype=f"<{dtype}", scale=scale))


@pytest.mark.parametrize("name", ["scale", "offset"])
def test_zeros_of_either_sign_are_different_numbers(name):
    """They are equal, and what is kept for one is not for the other."""
    data = np.full(N, -0.0 if name == "offset" else 2.0)

    for zero in (0.0, -0.0, 0):
        cast = Cast(dtype="<f8", **{name: zero})
        assert_same_bits(loops_give(data, cast), numpy_cast(cast, data))


@pytest.mark.parametrize("key", [slice(1, None, 7), [0, 5, 5, 999, 1000, 2999]])
def test_elements_that_lie_apart(key):
    data, cast = any_bits("i2", np.random.default_rng(SEED)), Cast(dtype="<f4", mask=(7,), scale=0.1)
    array = write(MemoryStore(), data, chunks=(1000,), config={"write_empty_chunks": True})

    with rows_taken() as taken:
        found = read(stored_array(array, cast), key, HostDecoder())

    assert taken.n_rows == 3
    assert_same_bits(found, numpy_cast(cast, data[key]))


FILTERS = {
    "shuffle": (zn.Shuffle(elementsize=8), "f8"),
    "shuffle by three": (zn.Shuffle(elementsize=3), "u1"),
    "delta": (zn.Delta(dtype="<i4"), "i4"),
    "delta of a narrower dtype": (zn.Delta(dtype="<i8", astype="<i2"), "i8"),
    "delta of floats": (zn.Delta(dtype="<f4"), "f4"),
    "fixed scale": (zn.FixedScaleOffset(offset=10, scale=7, dtype="<f8", astype="<i2"), "f8"),
    "fixed scale of singles": (zn.FixedScaleOffset(offset=-1.5, scale=3.3, dtype="<f4", astype="<f4"), "f4"),
    "astype": (zn.AsType(encode_dtype="<f4", decode_dtype="<f8"), "f8"),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("codec", [None, zarr.codecs.ZstdCodec(), zn.LZ4()])
def test_filters(monkeypatch, name, codec):
    spec, dtype = FILTERS[name]
    data = (np.random.default_rng(SEED).random(3000) * 99).astype(dtype)
    is_bytes = isinstance(spec, zn.Shuffle)
    compressors = [*([spec] if is_bytes else []), *([codec] if codec else [])] or None
    filters = None if is_bytes else [spec]
    keywords = {"chunks": (1500,), "filters": filters}
    array = write(MemoryStore(), data, compressors=compressors, config={"write_empty_chunks": True}, **keywords)

    with rows_taken() as taken:
        found = read_array(array, slice(3, 2999), device="host")
    without_loops(monkeypatch)

    assert taken.n_rows == array.nchunks
    assert_same_bits(found, array[3:2999])
    assert_same_bits(found, read_array(array, slice(3, 2999), device="host"))


@pytest.mark.parametrize("decoded", ["i1", "i4", "u8", "i8", "f4", "f8"])
@pytest.mark.parametrize("encoded", ["i2", "i4", "i8", "u1", "u4", "u8", "f4", "f8"])
def test_differences_of_any_bits(monkeypatch, encoded, decoded):
    if not converts(encoded, decoded):
        return
    rng = np.random.default_rng(SEED)
    stored = rng.normal(0, 1e5, N).astype(encoded) if encoded[0] == "f" else any_bits(encoded, rng)
    keywords = {"chunks": (1000,), "compressors": None}
    raw = write(MemoryStore(), stored, config={"write_empty_chunks": True}, **keywords)
    spec = zn.Delta(dtype=f"<{decoded}", astype=f"<{encoded}")
    array = write(
        MemoryStore(), np.ones(N, decoded), filters=[spec], serializer=BytesCodec(endian="little"), **keywords
    )
    for number in range(3):
        put(array.store, f"c/{number}", take(raw.store, f"c/{number}"))

    with rows_taken() as taken:
        found = read_array(array, device="host")
    without_loops(monkeypatch)

    if encoded == decoded:
        assert taken.n_rows == 3
    assert_same_bits(found, array[...])
    assert_same_bits(found, read_array(array, device="host"))


NANS = {
    "f4": ("u4", [0x7FC00001, 0xFFC00002, 0x7F800003, 0xFF800004]),
    "f8": ("u8", [0x7FF8000000000001, 0xFFF8000000000002, 0x7FF0000000000003, 0xFFF0000000000004]),
}


@pytest.mark.parametrize("dtype", NANS)
@pytest.mark.parametrize("is_optimised", [True, False])
def test_the_first_nan_of_differences_stays(monkeypatch, dtype, is_optimised):
    if not is_optimised:
        monkeypatch.setattr(library, "find", lambda: changed(()))
    bits, numbers = NANS[dtype]
    pairs = [*itertools.product(range(3), numbers, numbers[:2])]
    stored = np.ones((len(pairs), 20), dtype)
    stored[::5, 4:6] = np.inf, -np.inf
    for row, (at, first, second) in zip(stored.view(bits), pairs, strict=True):
        row[at], row[7] = first, second
    keywords = {"chunks": (1, 20), "compressors": None}
    raw = write(MemoryStore(), stored, **keywords)
    array = write(MemoryStore(), np.ones_like(stored), filters=[zn.Delta(dtype=f"<{dtype}")], **keywords)
    for number in range(len(pairs)):
        put(array.store, f"c/{number}/0", take(raw.store, f"c/{number}/0"))

    with rows_taken() as taken:
        found = read_array(array, device="host")

    assert taken.n_rows == len(pairs)
    assert_same_bits(found, array[...])


def test_filters_one_behind_another_and_a_cast():
    data = np.random.default_rng(SEED).integers(0, 99, 3000).astype("f8")
    filters = [zn.FixedScaleOffset(offset=1, scale=4, dtype="<f8", astype="<i4"), zn.Delta(dtype="<i4")]
    array = write(
        MemoryStore(), data, chunks=(1000,), filters=filters, compressors=[zn.Shuffle(elementsize=4), zn.Zstd()]
    )
    cast = Cast(dtype="<f4", mask=(42,), scale=0.5, offset=-3)

    with rows_taken() as taken:
        found = read(stored_array(array, cast), slice(None), HostDecoder())

    assert taken.n_rows == 3
    assert_same_bits(found, numpy_cast(cast, array[:]))


def test_points_of_several_chunks():
    data = any_bits("i4", np.random.default_rng(SEED), 2000).reshape(40, 50)
    array = write(MemoryStore(), data, chunks=(30, 20), compressors=None)
    places = tuple(np.random.default_rng(SEED).integers(0, n, 300) for n in data.shape)

    assert_same_bits(read_points(stored_array(array), places, HostDecoder()), data[places])


# ---- faults planted in the loops: what compares them with NumPy notices each

MUTANTS = {
    "a block overlaps": (
        "for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS)",
        "for (int64_t at = 0; at < n; at += 1025)",
    ),
    "the rest of a block": ("n - at < BLOCK_ELEMENTS ? n - at", "n - at < BLOCK_ELEMENTS ? n - at - 1"),
    "only the first value is masked": ("i < step->n_values", "i < 1"),
    "another NaN": ("MASK_REALS(float, uint32_t, 0x7FC00000)", "MASK_REALS(float, uint32_t, 0xFFC00000)"),
    "masked in halves": ("? 0x7E00 : x", "? 0x7C00 : x"),
    "added, not multiplied": (
        "case MULTIPLY * N_DTYPES + F4: IN_PLACE(float, x * f)",
        "case MULTIPLY * N_DTYPES + F4: IN_PLACE(float, x + f)",
    ),
    "a product that is not rounded": (
        "case MULTIPLY * N_DTYPES + F2: HALVES(*) break;",
        "case MULTIPLY * N_DTYPES + F2: break;",
    ),
    "multiplied, not divided": (
        "case DIVIDE * N_DTYPES + F8: IN_PLACE(double, x / d)",
        "case DIVIDE * N_DTYPES + F8: IN_PLACE(double, x * (1 / d))",
    ),
    "half of an even one": ("(rest == middle && (half & 1))", "rest == middle"),
    "small halves": ("if (exponent < -25) return sign;", "if (exponent < -15) return sign;"),
    "payload of a half": ("fraction << 13;\n    } else if (exponent)", "fraction << 12;\n    } else if (exponent)"),
    "a real number's imaginary part": ("((c8_t){x, 0})", "((c8_t){x, 1})"),
    "bytes of four": ("__builtin_bswap32(x)", "(x)"),
    "bytes of two": ("x << 8 | x >> 8", "x"),
    "booleans": ("CONVERTER(in, in_t, bool, uint8_t, (x) != 0)", "CONVERTER(in, in_t, bool, uint8_t, x)"),
    "unsigned as signed": ("TO_REALS(u2, uint16_t, x)", "TO_REALS(u2, int16_t, x)"),
    "sum of all but the last": ("sum = i ? (of_t)(sum + x) : x;", "sum = i && i < n - 1 ? (of_t)(sum + x) : x;"),
    "elements of a shuffle": ("(int)stage->elementsize, src", "2, src"),
    "where points are from": ("rows->in_at + box}", "rows->in_at}"),
    "where points go": ("positions_t){1, rows->out_at + box}, chunk", "positions_t){1, rows->out_at}, chunk"),
    "the first of an index": ("index ? index + piece[0] : NULL", "index"),
    "one element of an index": ("*in_at += piece.index[0] * job->in_strides[i];", ";"),
}


def try_steps():
    """Run some of the tests above."""
    for pair in ("f4 f2", "f2 f4", "f4 c8", "i4 b1", "u2 f4"):
        test_every_pair_of_dtypes(*pair.split())
    for dtype in ("i2", "f4"):
        test_the_other_byte_order(dtype)
    for number in range(40):
        test_masks_factors_and_summands(number)
    for name in FILTERS:
        with pytest.MonkeyPatch.context() as patch:
            test_filters(patch, name, None)
    test_unusual_dtypes_are_masked_and_moved("f2", Cast(dtype="<f2", mask=(4,), scale=0.7))
    test_elements_that_lie_apart([0, 5, 5, 999, 1000, 2999])
    test_points_of_several_chunks()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_noticed(monkeypatch, name):
    loops = changed((MUTANTS[name],))
    monkeypatch.setattr(library, "find", lambda: loops)

    with pytest.raises(AssertionError):
        try_steps()
