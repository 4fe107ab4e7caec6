"""Faults planted in what the loops do to elements: what compares them with NumPy notices each."""

import numcodecs.zarr3 as zn
import numpy as np
import pytest
import zarr
from helpers.data.corpus import write
from helpers.loops import changed
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.native import library
from xarray_gpuzarr.read import read, stored_array
from xarray_gpuzarr.read.reading import read_points
from xarray_gpuzarr.stored.cf import Cast

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.filterwarnings("ignore")]

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
    "where points go": ("lie_t){1, rows->out_at + box}, chunk", "lie_t){1, rows->out_at}, chunk"),
    "the first of an index": ("index ? index + piece[0] : NULL", "index"),
    "one element of an index": ("*in_at += piece.index[0] * job->in_strides[i];", ";"),
}


def checks():
    """Return pairs of values: what is found, and what is right."""
    rng = np.random.default_rng(7)
    bits = {dtype: np.frombuffer(rng.bytes(4 * 2000), dtype)[:2000].copy() for dtype in ("i2", "u2", "i4", "f2", "f4")}
    bits["i2"][:900] %= 9
    bits["f2"][:900] = np.arange(900) % 9

    def found(data, cast, key=slice(None), **keywords):
        array = write(MemoryStore(), data, chunks=(1500,), config={"write_empty_chunks": True}, **keywords)
        return read(stored_array(array, cast), key, HostDecoder())

    packed = bits["i2"].astype("f4")
    packed[(packed == 3) | (packed == 5)] = np.nan
    yield (
        found(bits["i2"], Cast(dtype="<f4", mask=(3, 5), scale=0.3, offset=2)),
        packed * np.float32(0.3) + np.float32(2),
    )
    half = np.where(bits["f2"] == 4, np.float16(np.nan), bits["f2"]) * np.float16(0.7)
    yield found(bits["f2"], Cast(dtype="<f2", mask=(4,), scale=0.7)), half
    for dtype, decoded in (("f4", "f2"), ("f2", "f4"), ("f4", "c8"), ("i4", "b1"), ("u2", "f4")):
        yield found(bits[dtype], Cast(dtype=np.dtype(decoded).str)), bits[dtype].astype(decoded)
    tiny = (bits["i2"].astype("f4") * np.float32(2.0**-32)).astype("f4")
    yield found(tiny, Cast(dtype="<f2")), tiny.astype("f2")
    for dtype in ("i2", "f4"):
        yield found(bits[dtype], Cast(dtype=f"<{dtype}"), serializer=BytesCodec(endian="big")), bits[dtype]
    index = np.sort(rng.integers(0, 2000, 99))
    index[-1] = 1999
    yield found(bits["i4"], Cast(dtype="<f8"), index), bits["i4"][index].astype("f8")
    yield found(bits["i4"], Cast(dtype="<f8"), [7, 1503]), bits["i4"][[7, 1503]].astype("f8")
    numbers = rng.random(2000) * 2000
    for options in (
        {"filters": [zn.FixedScaleOffset(offset=1, scale=7, dtype="<f8", astype="<i4")]},
        {"filters": [zn.Delta(dtype="<f8")]},
        {"compressors": [zn.Shuffle(elementsize=8), zn.Zstd()]},
    ):
        array = write(MemoryStore(), numbers, chunks=(1500,), **options)
        yield read_array(array, device="host"), array[:]
    square = zarr.create_array(MemoryStore(), shape=(40, 50), chunks=(30, 20), dtype="i4", compressors=None)
    square[:] = bits["i4"].reshape(40, 50)
    places = rng.integers(0, 40, 300), rng.integers(0, 50, 300)
    yield read_points(stored_array(square), places, HostDecoder()), square[:][places]


def is_noticed():
    return any(np.asarray(found).tobytes() != right.tobytes() for found, right in checks())


def test_the_loops_are_right():
    assert not is_noticed()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_noticed(monkeypatch, name):
    loops = changed((MUTANTS[name],))
    monkeypatch.setattr(library, "find", lambda: loops)

    assert is_noticed()
