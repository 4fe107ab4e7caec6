"""`batches`: checks the arguments of a caller and returns `Batches`."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from xarray import DataArray, Dataset, DataTree

from xarray_gpuzarr.backend.open_options import require_float32
from xarray_gpuzarr.errors import ArrayTypeError, KeywordError, OptionError, similar_name_hint
from xarray_gpuzarr.process.settings import parse_nbytes
from xarray_gpuzarr.training.channels import SAMPLE
from xarray_gpuzarr.training.iterator import Budget
from xarray_gpuzarr.training.loader import Batches
from xarray_gpuzarr.training.order import Order, require_batches
from xarray_gpuzarr.training.samples import choose_samples, require_mapping, require_whole
from xarray_gpuzarr.training.template import Template


def _with_known_keywords[**P, Result](function: Callable[P, Result]) -> Callable[P, Result]:
    """Return `function` with an error for unknown keywords that names the known ones."""
    known = list(signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Result:
        for name in kwargs:
            if name not in known:
                raise KeywordError(
                    f"unknown keyword {name!r}",
                    tried=f"{name}= of {function.__name__}",
                    found="valid keywords: " + ", ".join(known),
                    do=f"leave it out, or choose one of these{similar_name_hint(name, known)}",
                )
        return function(*args, **kwargs)

    return checked


@_with_known_keywords
def batches(  # noqa: PLR0913
    ds: Dataset,
    sizes: Mapping[Hashable, int],
    batch: int,
    *,
    stride: Mapping[Hashable, int] | None = None,
    random: int | None = None,
    positions: Mapping[Hashable, Any] | None = None,
    shuffle: bool = False,
    window: int | str | None = None,
    seed: int = 0,
    prefetch: int = 2,
    memory: int | str | None = None,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    dtype: Any = None,
    stack: Hashable = None,
) -> Batches:
    """Cut a dataset into samples and return them in batches, for training.

    A sample is a box of the dataset. A batch is a dataset with a new first dimension ``sample``. Sample ``i`` equals
    what ``ds.isel(...)`` returns for its box, including coordinates, attributes and missing values. Variables that have
    none of the dimensions in `sizes` are included unchanged.

    Parameters
    ----------
    ds : xarray.Dataset
        Opened with this engine, lazily or with dask, from one store or several; ``isel`` and ``sel`` may have been
        applied. Variables that dask computes, or that another engine opened, work too, but are read more slowly.
    sizes : mapping of dimension to int
        Elements of a sample along each dimension that is cut. Other dimensions are taken whole.
    batch : int
        Number of samples in a batch.
    stride : mapping of dimension to int, optional
        Elements between the starts of samples; by default their size, so that samples are side by side. Samples that
        would extend beyond the dataset are left out.
    random : int, optional
        Number of boxes to draw in each epoch, at uniformly random places, instead of boxes at regular distances.
    positions : mapping of dimension to int array of shape (n,), optional
        Positions at which samples start, instead of boxes at regular distances: one start for each sample along every
        dimension of `sizes`.
    shuffle : bool
        Shuffle the samples anew in each epoch. All orders are equally likely, unless there is a `window`.
    window : int or str, optional
        Bytes of samples, such as ``"1 GiB"``, that are read at once and kept until their batches are handed over. With
        `shuffle`, samples are drawn from one window at a time, and a window holds samples of few shards. So chunks that
        they share are decoded once, but the samples of a batch are less independent.
    seed : int
        Seed of random orders and boxes. They depend on nothing else but the arguments and the epoch.
    prefetch : int
        Batches, or windows, that are read ahead on other threads. 0: read when a batch is asked for.
    memory : int or str, optional
        Limit in bytes, or text such as ``"2 GiB"``, for results that are read ahead but not handed over yet. A result
        is a batch, or a window. The worker processes of a rank share the limit, which must suffice for one result of
        each. By default, results on the host may take a quarter of the host's free memory, divided by the number of
        ranks that ``torchrun`` has started there, and always one result per process. Results on a GPU are then limited
        by `prefetch` alone.
    drop_last : bool
        Leave out batches that are not full, and give all ranks the same number of batches.
    rank, world_size : int, optional
        Which part of the samples this process reads. By default the values of ``torch.distributed`` when an epoch
        starts, if it is initialised, otherwise 0 and 1.
    dtype : "float32", optional
        Dtype in place of float64, for data variables that are stored as float64, or that become float64 when packed
        integers are decoded. They are decoded straight to float32: masked and scaled in float64, and rounded once.
    stack : hashable, optional
        Name of a new dimension. All data variables, which must have the same dimensions and dtype, become one array: a
        batch is a DataArray with the dimensions ``sample``, `stack`, and those of the variables. Their names are the
        coordinate of the new dimension.

    Returns
    -------
    Batches
        Each ``iter()`` starts the next epoch.

    Raises
    ------
    OptionError
        A value is invalid, samples do not fit into the dataset, `memory` is too little for one result, or there is not
        a single batch.

    Examples
    --------
    >>> import xarray as xr
    >>> ds = xr.open_dataset("era5.zarr", engine="gpuzarr", device="host")
    >>> loader = batches(ds[["t2m"]], sizes={"time": 2, "latitude": 8, "longitude": 8}, batch=4, shuffle=True)
    >>> next(iter(loader)).t2m.shape
    (4, 2, 8, 8)
    >>> loader = batches(ds[["t2m", "u10"]], sizes={"time": 2}, batch=4, dtype="float32", stack="channel")
    >>> next(iter(loader)).dims
    ('sample', 'channel', 'time', 'latitude', 'longitude')
    """
    lengths = _lengths_of_cut_dims(ds, sizes)
    lengths_of_sample = {dim: int(n) for dim, n in sizes.items()}
    samples = choose_samples(lengths, lengths_of_sample, stride=stride, random=random, positions=positions)
    require_float32(dtype, "dtype")
    template = Template.from_dataset(ds, lengths_of_sample, to_float32=dtype is not None, stack=stack)
    batch = require_whole("batch", batch, 1)
    own_rank, n_ranks = _require_rank(rank, world_size)
    order = Order(
        batch=batch,
        shuffle=_require_bool("shuffle", shuffle),
        window=None if window is None else _samples_in_window(window, batch, template),
        seed=require_whole("seed", seed, 0),
        drop_last=_require_bool("drop_last", drop_last),
        rank=own_rank,
        world_size=n_ranks,
    )
    require_batches(order, samples)
    budget = _require_budget(prefetch, memory)
    loader = Batches(template, samples, order, budget, follows_ranks=rank is None)
    budget.n_ahead(template, loader.order, samples)  # raises if `memory` is too little for one result
    return loader


def _require_rank(rank: Any, world_size: Any) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; 0 and 1 if neither was given."""
    if rank is None and world_size is None:
        return 0, 1
    if rank is None or world_size is None:
        raise OptionError(
            "rank= and world_size= belong together",
            tried=f"rank={rank!r}, world_size={world_size!r}"[:200],
            found="only one of them",
            do="give both; or give neither, to have torch.distributed asked",
        )
    n_ranks = require_whole("world_size", world_size, 1)
    own_rank = require_whole("rank", rank, 0)
    if own_rank >= n_ranks:
        raise OptionError(
            "unusable rank=", tried=f"rank={own_rank}", found=f"world_size={n_ranks}", do="count ranks from 0"
        )
    return own_rank, n_ranks


def _require_budget(prefetch: Any, memory: Any) -> Budget:
    """Return the limits of what is read ahead; raise an `OptionError` if one is invalid."""
    n_results = require_whole("prefetch", prefetch, 0)
    max_nbytes = None if memory is None else _require_nbytes("memory", memory)
    return Budget(prefetch=n_results, memory=max_nbytes)


def _samples_in_window(window: Any, batch: int, template: Template) -> int:
    """Return the number of samples in a window: those of all whole batches that fit into `window` bytes, or of one."""
    nbytes_of_batch = max(1, batch * template.nbytes)
    return batch * max(1, _require_nbytes("window", window) // nbytes_of_batch)


def _require_dataset(ds: Any) -> None:
    """Raise an `ArrayTypeError` if `ds` is not a dataset. The error says how to make a dataset of `ds`."""
    if isinstance(ds, Dataset):
        return
    if isinstance(ds, DataArray):
        do = "make one: array.to_dataset(name=...)"
    elif isinstance(ds, DataTree):
        do = "choose a group: tree[path].to_dataset()"
    else:
        store = repr(os.fspath(ds)) if isinstance(ds, str | os.PathLike) else "store"
        do = f'open one: xarray.open_dataset({store}, engine="gpuzarr")'
    raise ArrayTypeError(
        "batches takes an xarray.Dataset",
        tried=f"batches of a {type(ds).__module__}.{type(ds).__qualname__}",
        found="not an xarray.Dataset",
        do=do,
    )


def _lengths_of_cut_dims(ds: Any, sizes: Any) -> dict[Hashable, int]:
    """Return the length in `ds` of each dimension that is cut, after checking the dataset and the sizes of samples."""
    _require_dataset(ds)
    require_mapping("sizes", sizes, ds.sizes)
    lengths = {dim: ds.sizes[dim] for dim in sizes}
    for dim, n in sizes.items():
        require_whole(f"sizes[{dim!r}]", n, 1)
        if n > lengths[dim]:
            raise OptionError(
                "samples are larger than the dataset",
                tried=f"{n} elements of {dim!r}",
                found=f"{dim!r} has {lengths[dim]}",
                do="give smaller sizes=",
            )
    if all(sizes.keys().isdisjoint(variable.dims) for variable in ds.data_vars.values()):
        raise OptionError(
            "there is nothing to cut",
            tried=f"samples along {', '.join(map(repr, sizes))}",
            found="no data variable has any of these dimensions",
            do="give dimensions of the data variables, or a dataset that has some",
        )
    if SAMPLE in ds.dims or SAMPLE in ds.variables:
        raise OptionError(
            f"{SAMPLE!r} is taken",
            tried=f"batches with a dimension {SAMPLE!r}",
            found="the dataset has a dimension or a variable of that name",
            do=f"rename it: ds.rename({SAMPLE}=...)",
        )
    return lengths


def _require_bool(name: str, value: Any) -> bool:
    """Return the value of an option as a bool, or raise an `OptionError` if it is something else."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(
            f"unusable {name}=",
            tried=f"{name}={value!r}"[:200],
            found="neither True nor False",
            do="give True or False",
        )
    return bool(value)


def _require_nbytes(name: str, value: Any) -> int:
    """Return the value of an option in bytes, given as a number or as text such as ``"2 GiB"``."""
    if isinstance(value, str):
        tried = f"{name}={value!r}"
        value = parse_nbytes(value, f"unusable {name}=", tried=tried, do=f"give {name}= a size like these")
    return require_whole(name, value, 1)
