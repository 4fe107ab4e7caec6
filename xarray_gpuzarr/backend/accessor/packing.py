"""Pack blocks of dask by xarray's own coders, one slab that fits a cache at a time.

xarray packs whole blocks, one arithmetic operation after another, which takes several times their memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from xarray import Variable, conventions

from xarray_gpuzarr.errors import OptionError

_SLAB = 2**17
"""Elements that are packed at once: a megabyte of float64."""
PACKING = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
TIMES = ("units", "calendar")


def packed(name: Any, variable: Variable, stored: Variable) -> da.Array:
    """Return the blocks of a decoded variable packed as `stored`, which xarray opened with its times left as stored.

    Computing them raises an `OptionError` if the units in the store cannot express a time. `name` is for that error.
    """
    encoding: dict[str, Any] = {key: stored.encoding[key] for key in PACKING if key in stored.encoding}
    if "missing_value" in encoding and np.all(encoding.get("_FillValue") != encoding.get("_FillValue")):
        del encoding["_FillValue"]  # NaN, which xarray adds to all floats, and refuses beside another value
    blocks: da.Array = variable.data
    # By integers xarray divides blocks of dask, and refuses arrays of NumPy.
    for key in {"scale_factor", "add_offset"} & encoding.keys():
        encoding[key] = float(np.asarray(encoding[key]).item())
    if variable.dtype.kind in "mM":
        encoding |= {key: stored.attrs[key] for key in TIMES if key in stored.attrs}
    dtype = _encoded(np.zeros(1, variable.dtype), encoding).dtype
    values = [encoding[key] for key in PACKING[1:] if key in encoding]
    # Missing values that are NaN are stored as they are.
    changes = any(not isinstance(value, float | np.floating) or not np.isnan(value) for value in values)
    if dtype == variable.dtype and not changes:
        return blocks
    pack = partial(_pack, name=name, dtype=dtype, encoding=encoding)
    meta = np.empty((0,) * variable.ndim, dtype)
    stored_blocks: da.Array = da.map_blocks(pack, blocks, dtype=dtype, meta=meta)
    return stored_blocks


def _pack(block: npt.NDArray[Any], name: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> npt.NDArray[Any]:
    slabs = np.nditer(
        [block, None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"], ["writeonly", "allocate"]],
        op_dtypes=[block.dtype, dtype],
        buffersize=_SLAB,
    )
    with slabs:
        for values, out in slabs:
            encoded = _encoded(values, encoding)
            units, calendar = encoded.attrs.get("units"), encoding.get("calendar", "proleptic_gregorian")
            if not _are_same_units(units, encoding.get("units"), calendar) or encoded.dtype != dtype:
                raise OptionError(
                    f"times of variable {name!r} have no value in the units of the store",
                    tried=f"units {encoding.get('units')!r} of dtype {dtype}",
                    found=f"times that need {units!r} of dtype {encoded.dtype}",
                    do="give units that fit all times, such as encoding={name: {'units': 'seconds since 1970-01-01'}}",
                )
            out[...] = encoded.values
        return slabs.operands[1]


@lru_cache(maxsize=64)
def _are_same_units(encoded: str | None, stored: str | None, calendar: str) -> bool:
    """Whether units count the same from the same time; xarray writes them its own way, such as without ``00:00:00``."""
    if encoded == stored or encoded is None or stored is None:
        return encoded == stored
    first, second = (
        conventions.decode_cf_variable("element", Variable("element", [0, 1], {"units": units, "calendar": calendar}))
        for units in (encoded, stored)
    )
    return bool((first == second).all())


def _encoded(values: npt.NDArray[Any], encoding: Mapping[str, Any]) -> Variable:
    return conventions.encode_cf_variable(Variable("element", values, encoding=dict(encoding)))
