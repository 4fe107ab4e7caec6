"""Says so where ``chunks=`` of `xarray.open_dataset` names a dimension that the dataset lacks: xarray ignores it.

xarray does not hand that argument to its engines. It is looked up where `open_dataset` is what calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType

import xarray as xr

from xarray_gpuzarr.errors import perhaps
from xarray_gpuzarr.process.advice import advise


def advise_of_unknown_chunks(caller: FrameType | None, dataset: xr.Dataset) -> None:
    """Say so if chunks were asked for along what is no dimension of a dataset.

    Parameters
    ----------
    caller : frame or None
        Of what called the engine.
    dataset : xarray.Dataset
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
