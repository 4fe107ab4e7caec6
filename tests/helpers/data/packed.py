"""Stored variables of every kind of number, with every combination of what CF says about numbers."""

from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import xarray as xr
import zarr
from hypothesis import strategies as st
from xarray.backends.zarr import FillValueCoder
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from helpers.data.corpus import NUMERIC_DTYPES, edge_values
from helpers.older_versions import ENCODES_COMPLEX_FILL_VALUES, FILTERS_TAKE_ANY_ELEMENTS

DIMS = ("z", "y", "x")
SIZES = (((13,), (4,), (8,)), ((7, 5), (3, 2), (6, 4)), ((4, 3, 5), (2, 3, 2), (4, 3, 4)), ((5, 6), (5, 6), (5, 6)))
"""(shape, inner chunks, shards): mostly with chunks and shards that reach over an edge."""
COMPRESSORS: dict[str, tuple[Any, Any]] = {
    "raw": (None, None),
    "zstd": (numcodecs.Zstd(), ZstdCodec()),
    "gzip": (numcodecs.GZip(1), GzipCodec(level=1)),
    "blosc": (numcodecs.Blosc("lz4", 5, 1), BloscCodec(cname="lz4", shuffle="shuffle", typesize=2)),
}
"""In format 2 and 3."""

factors = st.sampled_from([1, 2, -3, 0.5, 0.1, float(np.float32(0.1)), 1e-3, 1e30])
terms = st.sampled_from([0, 1, -7, 10**6, 273.15, float(np.float32(273.15)), -0.5])


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A variable named ``v`` as it is to be stored."""

    data: np.ndarray
    zarr_format: int
    attrs: dict[str, Any]
    fill_value: Any
    layout: dict[str, Any]

    def write(self) -> MemoryStore:
        """Store it in a group, without the first elements of the first axis: some chunks are never written."""
        store, data = MemoryStore(), self.data
        dims = DIMS[-data.ndim :]
        zarr.create_group(store, zarr_format=self.zarr_format)
        named = {"dimension_names": dims} if self.zarr_format == 3 else {}
        attrs = self.attrs | ({} if named else {"_ARRAY_DIMENSIONS": dims})
        array = zarr.create_array(
            store, name="v", shape=data.shape, dtype=data.dtype, zarr_format=self.zarr_format,
            fill_value=self.fill_value, attributes=attrs, **self.layout, **named,
        )  # fmt: skip
        array[3:] = data[3:]
        return store


def opened(store: Any, engine: str, **keywords: Any) -> xr.Dataset:
    """Open a store with an engine, on the host."""
    device = {"device": "host"} if engine == "gpuzarr" else {}
    return xr.open_dataset(store, engine=engine, consolidated=False, **device, **keywords)


def xarray_can_decode(store: Any) -> bool:
    """Say whether xarray itself accepts the attributes; else its error is the user's."""
    try:
        opened(store, "zarr").load()
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError, AssertionError):
        return False
    return True


@st.composite
def packed_variables(draw: Any) -> Packed:
    """Format x byte order x dtype x ``_Unsigned`` x fill values x scale x offset x codecs x sharding x transpose."""
    zarr_format, endian = draw(st.sampled_from([2, 3])), draw(st.sampled_from(["little", "big"]))
    dtype = np.dtype(draw(st.sampled_from(NUMERIC_DTYPES)))
    if zarr_format == 2:
        dtype = dtype.newbyteorder(endian[0].replace("l", "<").replace("b", ">"))
    sizes = draw(st.sampled_from(SIZES))
    data = edge_values(dtype, sizes[0], seed=draw(st.integers(0, 99)))
    numbers = data.reshape(-1)[-4:]
    fill, attrs = _missing(draw, zarr_format, numbers)
    optional = {"_Unsigned": st.sampled_from(["true", "false"]), "scale_factor": factors, "add_offset": terms}
    attrs |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    layout = _layout(draw, zarr_format, endian, sizes, dtype)
    return Packed(data=data, zarr_format=zarr_format, attrs=attrs, fill_value=fill, layout=layout)


def _missing(draw: Any, zarr_format: int, numbers: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Draw Zarr's fill value, and attributes that say what is missing: nothing, elements, or no element at all."""
    kind = draw(st.sampled_from(["none", "in range", "out of range", "several"]))
    fill, attrs = draw(st.sampled_from([None, 0, numbers[0].item()])), {}
    masks = kind in ("in range", "several")
    if zarr_format == 2 and masks:
        fill = numbers[1].item()
    elif zarr_format == 3:
        fill = numbers[0].item() if fill is None else fill
        if masks and (numbers.dtype.kind != "c" or ENCODES_COMPLEX_FILL_VALUES):
            attrs["_FillValue"] = FillValueCoder.encode(numbers[1].item(), numbers.dtype)
    if kind == "out of range":
        name = draw(st.sampled_from(["missing_value", "_FillValue"]))
        attrs[name] = draw(st.sampled_from([-1, 300, 40000, 2**32 - 1, -(2**40), 2**64 - 1, 3.5, 1e20]))
    real = [n for n in numbers.tolist() if not isinstance(n, complex)]
    if kind == "several" and real:
        attrs["missing_value"] = draw(st.sampled_from([real[2], real[1:], [real[3], -1, 255]]))
    return fill, attrs


def _layout(draw: Any, zarr_format: int, endian: str, sizes: Any, dtype: np.dtype) -> dict[str, Any]:
    """Draw a codec, transposed or not; in format 3 shards or none, and a filter that may have another byte order."""
    shape, chunks, shards = sizes
    compressor = COMPRESSORS[draw(st.sampled_from([*COMPRESSORS]))][zarr_format - 2]
    if zarr_format == 2:
        return {"chunks": chunks, "compressors": compressor, "order": draw(st.sampled_from("CF"))}
    filters = [TransposeCodec(order=tuple(draw(st.permutations(range(len(shape))))))] if draw(st.booleans()) else []
    if dtype.kind in "iu" and FILTERS_TAKE_ANY_ELEMENTS and draw(st.integers(0, 3)) == 0:
        filters.append(zn.Delta(dtype=dtype.newbyteorder(draw(st.sampled_from("<>"))).str))
    return {
        "chunks": chunks,
        "shards": shards if draw(st.booleans()) else None,
        "filters": filters or None,
        "serializer": BytesCodec(endian=endian),
        "compressors": compressor,
    }
