"""Keywords of `open_dataset`, checked: how variables are decoded, where, and how bytes get there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import FrameType
from typing import Any, Self

import numpy as np
import xarray as xr

from xarray_gpuzarr.decoders.choice import resolve_device, resolve_storage
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import KeywordError, OptionError, perhaps
from xarray_gpuzarr.fetch.source import Storage
from xarray_gpuzarr.process.advice import advise

_FLOAT32: tuple[Any, ...] = ("float32", np.float32, np.dtype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """How values are decoded: xarray's keywords, and `float_dtype`.

    Each is one value or a mapping from variable name to value. Raises `OptionError` for an unknown `float_dtype`.
    """

    mask_and_scale: Any = True
    decode_times: Any = True
    concat_characters: Any = True
    decode_coords: Any = True
    use_cftime: Any = None
    decode_timedelta: Any = None
    float_dtype: Any = None
    """"float32": data variables that xarray gives as float64 are given as float32."""

    def __post_init__(self) -> None:
        by_name = self.float_dtype if isinstance(self.float_dtype, Mapping) else {"": self.float_dtype}
        for dtype in by_name.values():
            require_float32(dtype, "float_dtype")

    @property
    def of_xarray(self) -> dict[str, Any]:
        """Keywords that xarray takes."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "float_dtype"}

    def wants_float32(self, name: Hashable) -> bool:
        """Whether a data variable is to be float32 where xarray gives it as float64."""
        dtype = self.float_dtype.get(name) if isinstance(self.float_dtype, Mapping) else self.float_dtype
        return dtype is not None


def require_float32(dtype: Any, keyword: str) -> None:
    """Raise an `OptionError` unless a dtype is float32, or None."""
    if dtype is not None and dtype not in _FLOAT32:
        raise OptionError(
            f"unusable {keyword}=",
            tried=f"{keyword}={dtype!r}"[:200],
            found="neither 'float32' nor None",
            do=f"give {keyword}='float32', or leave it out: values have the dtype that xarray gives them",
        )


def applies_to(name: Hashable, option: Any) -> bool:
    """Return whether one of xarray's decoding keywords asks for something of a variable."""
    return bool(option.get(name, True) if isinstance(option, Mapping) else option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where arrays are decoded, and how their bytes get there."""

    device: Device
    storage: Storage
    or_host: bool = False
    """Whether the host decodes if the device turns out to be unusable."""

    @classmethod
    def of(cls, device: str, storage: str) -> Self:
        """Check the keywords `device` and `storage`, as `resolve_device` and `resolve_storage` do."""
        resolved = resolve_device(device)
        or_host = device == "auto" and resolved == "cuda"
        return cls(device=resolved, storage=resolve_storage(storage, device), or_host=or_host)


def require_known(keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raise a `KeywordError` for a keyword that does not exist."""
    known = {*known, "chunks"}  # which xarray takes itself
    for name in sorted({*keywords} - known):
        raise KeywordError(
            f"unknown keyword {name!r}",
            tried=f'{name}= with engine="gpuzarr"',
            found="valid keywords: " + ", ".join(sorted(known - {"filename_or_obj"})),
            do=f"leave it out, or choose one of these{perhaps(name, known)}",
        )


def advise_of_unknown_chunks(caller: FrameType | None, dataset: xr.Dataset) -> None:
    """Advise the user if ``chunks=`` of `xarray.open_dataset` names a dimension that a dataset lacks.

    xarray ignores such a name, and does not pass the argument to its engines: it is read from the frame of the caller.
    """
    chunks = caller.f_locals.get("chunks") if caller and caller.f_code is xr.open_dataset.__code__ else None
    for dim in chunks if isinstance(chunks, Mapping) else ():
        if dim not in dataset.dims:
            dims = dataset.dims
            advise(
                f"chunks of {dim!r}",
                f"chunks= has no effect for {dim!r}, which is no dimension of the dataset",
                found="dimensions: " + ", ".join(map(repr, dims)),
                do=f"name one of these{perhaps(str(dim), dims)}, or leave {dim!r} out",
            )
