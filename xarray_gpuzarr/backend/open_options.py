"""Checks of the keywords of `open_dataset`.

`DecodeOptions` holds the keywords that say how values are decoded. `Place` holds those that say where they are decoded,
and how bytes get there. The functions raise an error, or advise the user, for keywords that do not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import FrameType
from typing import Any, Self

import numpy as np
import xarray as xr

from xarray_gpuzarr.decoders.choice import resolve_device, resolve_storage
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import KeywordError, OptionError, similar_name_hint
from xarray_gpuzarr.fetch.source import Storage
from xarray_gpuzarr.process.advice import advise

_FLOAT32: tuple[Any, ...] = ("float32", np.float32, np.dtype(np.float32))
"""Values that mean float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Keywords that say how values are decoded: those of xarray, and `float_dtype`.

    Each is one value, or a mapping from variable name to value.

    Raises
    ------
    OptionError
        `float_dtype` is neither float32 nor None.
    """

    mask_and_scale: Any = True
    decode_times: Any = True
    concat_characters: Any = True
    decode_coords: Any = True
    use_cftime: Any = None
    decode_timedelta: Any = None
    float_dtype: Any = None
    """Dtype of data variables that xarray gives as float64: "float32", or None to leave them float64."""

    def __post_init__(self) -> None:
        dtypes = self.float_dtype.values() if isinstance(self.float_dtype, Mapping) else [self.float_dtype]
        for dtype in dtypes:
            require_float32(dtype, "float_dtype")

    @property
    def xarray_keywords(self) -> dict[str, Any]:
        """Keywords of `xarray.conventions.decode_cf_variables`: all but `float_dtype`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "float_dtype"}

    def wants_float32(self, name: Hashable) -> bool:
        """Return whether a data variable is to be float32 if xarray gives it as float64."""
        dtype = self.float_dtype.get(name) if isinstance(self.float_dtype, Mapping) else self.float_dtype
        return dtype is not None


def require_float32(dtype: Any, keyword: str) -> None:
    """Raise an `OptionError` that names the keyword unless a dtype is float32 or None."""
    if dtype is not None and dtype not in _FLOAT32:
        raise OptionError(
            f"unusable {keyword}=",
            tried=f"{keyword}={dtype!r}"[:200],  # it may be any object
            found="neither 'float32' nor None",
            do=f"give {keyword}='float32', or leave it out: values have the dtype that xarray gives them",
        )


def applies_to(name: Hashable, option: Any) -> bool:
    """Return whether a decoding keyword of xarray, such as `decode_times`, is true for a variable.

    It is true for variables that a mapping does not name.
    """
    return bool(option.get(name, True) if isinstance(option, Mapping) else option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Device on which arrays are decoded, and how their bytes get there."""

    device: Device
    storage: Storage
    """How local files reach a GPU."""
    or_host: bool = False
    """Whether the host decodes if the device turns out to be unusable."""

    @classmethod
    def of(cls, device: str, storage: str) -> Self:
        """Return the place that the keywords `device` and `storage` of `open_dataset` describe.

        Raises
        ------
        OptionError, DeviceUnavailableError
            A keyword is unknown, or cannot be used on this machine.
        """
        resolved = resolve_device(device)
        or_host = device == "auto" and resolved == "cuda"  # a GPU that the user has named is not replaced by the host
        return cls(device=resolved, storage=resolve_storage(storage, device), or_host=or_host)


def require_known(keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raise a `KeywordError` about the first name, in alphabetical order, that is in `keywords` but not in `known`."""
    # xarray does not pass chunks= on, so it is never among `keywords`. The error names it as one that users can give.
    known = {*known, "chunks"}
    unknown = sorted({*keywords} - known)
    if not unknown:
        return
    name = unknown[0]
    raise KeywordError(
        f"unknown keyword {name!r}",
        tried=f'{name}= with engine="gpuzarr"',
        found="valid keywords: " + ", ".join(sorted(known - {"filename_or_obj"})),
        do=f"leave it out, or choose one of these{similar_name_hint(name, known)}",
    )


def advise_of_unknown_chunks(caller: FrameType | None, dataset: xr.Dataset) -> None:
    """Advise the user if ``chunks=`` of `xarray.open_dataset` names a dimension that a dataset lacks.

    xarray ignores such a name. It does not pass the argument to its engines, so it is read from the frame of the
    engine's caller.

    Parameters
    ----------
    caller : frame or None
        The frame that called the engine. Only that of `xarray.open_dataset` is examined.
    dataset : Dataset
        The opened dataset.
    """
    if caller is None or caller.f_code is not xr.open_dataset.__code__:
        return
    chunks = caller.f_locals.get("chunks")
    if not isinstance(chunks, Mapping):
        return
    _advise_of_unknown_names("chunks", chunks, "dimension", dataset.dims)


def advise_of_unknown_variables(float_dtype: Any, dataset: xr.Dataset) -> None:
    """Advise the user if ``float_dtype=`` names a variable that a dataset lacks."""
    if isinstance(float_dtype, Mapping):
        _advise_of_unknown_names("float_dtype", float_dtype, "variable", dataset.variables)


def _advise_of_unknown_names(keyword: str, names: Iterable[Any], kind: str, known: Collection[Any]) -> None:
    """Advise the user of each name in a keyword that is no dimension, or no variable (`kind`), of the dataset."""
    for name in names:
        if name not in known:
            advise(
                f"{keyword} of {name!r}",
                f"{keyword}= has no effect for {name!r}, which is no {kind} of the dataset",
                found=f"{kind}s: " + ", ".join(map(repr, known)),
                do=f"name one of these{similar_name_hint(str(name), known)}, or leave {name!r} out",
            )
