"""Warnings about writes to stored arrays that xarray carries out, but that are hardly ever meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Dataset, Variable
from xarray.backends import ZarrStore

from xarray_gpuzarr.backend.accessor.time_check import has_times
from xarray_gpuzarr.backend.accessor.xarray_encoding import decode_stored
from xarray_gpuzarr.process.advice import advise_each_time

_MOST_NBYTES = 2**24
"""Bytes of the largest variable that is compared with what is stored. Most coordinates and masks are smaller."""


def advise_of_append(
    target: ZarrStore, variables: Mapping[Any, Variable], stored: Mapping[Any, Variable], append_dim: Any, length: int
) -> None:
    """Warn if an append leaves out variables, changes values that are stored, or leaves an index without order.

    Variables are compared with what is stored if their new values are in memory and not too large. Nothing else in the
    store is read.

    Parameters
    ----------
    target : xarray.backends.ZarrStore
        The group that is appended to.
    variables : mapping of hashable to xarray.Variable
        The variables that are written, by name.
    stored : mapping of hashable to xarray.Variable
        Those of them that exist in the store already, undecoded as the store holds them.
    append_dim : hashable
        The dimension along which arrays become longer.
    length : int
        Their length after the append.
    """
    _advise_of_left_out(target, variables, append_dim, length)
    for name, in_store in stored.items():
        variable = variables[name]
        if variable.chunks is not None or variable.nbytes > _MOST_NBYTES:
            continue
        is_index = in_store.dims == (name,)
        if is_index and name == append_dim:
            _advise_of_order(name, decode_stored(in_store).values, variable.values)
        elif append_dim not in in_store.dims and in_store.shape == variable.shape:
            _advise_of_change(name, in_store, decode_stored(in_store).values, variable.values)


def _advise_of_left_out(target: ZarrStore, variables: Mapping[Any, Variable], append_dim: Any, length: int) -> None:
    """Warn of stored variables that an append leaves out, so that they will have another length than the others."""
    others = [name for name in target.array_keys() if name not in variables]
    left_out = [name for name in others if target.open_store_variable(name).sizes.get(append_dim, length) != length]
    if left_out:
        advise_each_time(
            f"an append leaves out variables that have the dimension {append_dim!r}",
            found=f"{', '.join(map(repr, left_out))} in the store, and not in the dataset",
            do="append these as well, or alone and without the index, as ds[[...]].drop_vars("
            f"{append_dim!r}): until then the store cannot be opened, since its arrays have different lengths",
        )


def _advise_of_change(name: Any, in_store: Variable, earlier: npt.NDArray[Any], later: npt.NDArray[Any]) -> None:
    """Warn if an append overwrites a variable, which does not have the dimension `append_dim`, with other values.

    `in_store` is the stored variable, `earlier` are its decoded values, and `later` those of the dataset.
    """
    kinds = earlier.dtype.kind + later.dtype.kind
    if "f" in kinds and set(kinds) <= set("iuf"):
        largest = np.fmax.reduce(np.abs(earlier), axis=None, initial=0)
        # Numbers that are packed in integers are stored with an error of up to half a step.
        is_packed = in_store.dtype.kind in "iu" and later.dtype.kind == "f"
        step = abs(float(in_store.attrs.get("scale_factor", 1))) if is_packed else 0.0
        # `isclose` also allows 1e-5 of each number. Numbers near zero may differ by the rounding errors of larger ones.
        tolerance = max(1e-6 * largest, 0.51 * step)
        is_equal = np.isclose(earlier, later, atol=tolerance, equal_nan=True)
    else:
        is_equal = np.asarray(earlier == later) | (_is_missing(earlier) & _is_missing(later))
    if not is_equal.all():
        index = np.unravel_index(int(is_equal.argmin()), is_equal.shape)
        advise_each_time(
            f"an append overwrites {name!r} with other values, also for what is stored already",
            found=f"{earlier[index]} in the store, {later[index]} in the dataset, at {tuple(map(int, index))}",
            do=f"bring the dataset to the stored {name!r}, for example with sortby or reindex, or leave it out: "
            f"ds.drop_vars({name!r})",
        )


def _advise_of_order(name: Any, earlier: npt.NDArray[Any], later: npt.NDArray[Any]) -> None:
    """Warn if the values of an index are neither increasing nor decreasing once it has been appended to."""
    can_have_order = earlier.dtype.kind in "iuf" or (has_times(earlier) and has_times(later))
    if earlier.dtype.kind != later.dtype.kind or not can_have_order:  # such as text
        return
    values = np.concatenate([earlier, later])
    try:
        is_up = values[1:] > values[:-1]
        is_down = values[1:] < values[:-1]
    except TypeError:  # dates of two calendars
        return
    if is_up.all() or is_down.all():
        return
    # The order of most values is taken for the intended one, and the first pair in another order is shown.
    is_in_order = is_up if is_up.sum() >= is_down.sum() else is_down
    break_index = int(is_in_order.argmin())
    advise_each_time(
        f"after the append, the values of {name!r} are neither increasing nor decreasing",
        found=f"{values[break_index]} at index {break_index}, followed by {values[break_index + 1]}",
        do=f"if these are stored already, write them with region={{{name!r}: 'auto'}} in place of an append; if an "
        "earlier append was killed, cut the arrays back with zarr.open_array(path, mode='r+').resize(shape), and call "
        "zarr.consolidate_metadata",
    )


def advise_of_region(target: ZarrStore, dataset: Dataset, region: Mapping[Any, slice]) -> None:
    """Warn if the indexes of a dataset differ from those of the region in the store, which keep their values.

    Stored indexes without values yet, such as those of a template, are not compared.

    Parameters
    ----------
    target : xarray.backends.ZarrStore
        The group that is written to.
    dataset : xarray.Dataset
        The dataset, with its indexes.
    region : mapping of hashable to slice
        The slices that the user has given. Where the user has given "auto", xarray finds the slice by its index.
    """
    for dim, part in region.items():
        if dim not in dataset.xindexes or dim not in target.array_keys():
            continue
        earlier = decode_stored(target.open_store_variable(dim).isel({dim: part})).values
        later = dataset[dim].values
        # Values that are all missing or all equal are those of a template.
        is_template = _is_missing(earlier).all() or (len(earlier) > 1 and (earlier == earlier[0]).all())
        if earlier.shape == later.shape and not is_template and not Variable(dim, earlier).equals(Variable(dim, later)):
            advise_each_time(
                f"a region in which the store has other values of {dim!r} than the dataset",
                found=f"{earlier[0]} to {earlier[-1]} in the store, {later[0]} to {later[-1]} in the dataset",
                do=f"give region={{{dim!r}: 'auto'}}, which finds the place by the values of {dim!r}",
            )


def _is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where values are missing, by their dtype."""
    is_missing: npt.NDArray[np.bool_] = Variable([*range(values.ndim)], values).isnull().values
    return is_missing
