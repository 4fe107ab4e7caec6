"""`configure`: one function for all settings of a process, and for the memory that reads share with CuPy and RMM."""

from __future__ import annotations

from typing import Any

from xarray_gpuzarr.cuda.current import native_device
from xarray_gpuzarr.process.configuration import choose_options, options_in_force


def configure(*, share: bool = False, **options: object) -> dict[str, Any]:
    """Configure requests to stores and GPU memory for this process, from the next read on.

    Parameters
    ----------
    share : bool
        Also make the memory resource of reads RMM's current one on the current device, and let CuPy allocate through
        RMM: one pool for reads and for what is computed from them. Needs a GPU.
    **options
        Fields of `FetchOptions` and `ResourceOptions`; those left out go back to the environment's value or the
        default. Sizes may carry a unit: ``"64 KiB"``, ``"2GB"``. ``engine="plain"`` stands for the most cautious
        value of each option: reads and batches one at a time, nothing decoded by the host, every chunk compared.

    Returns
    -------
    dict
        All options that are in force now, as keywords of this function. None stands for a default that depends on the
        store, the machine or the read.

    Raises
    ------
    OptionError
        An unknown name or an unusable value. Nothing has changed then.
    DeviceUnavailableError
        `share` without CuPy and RMM.

    Examples
    --------
    >>> import xarray_gpuzarr
    >>> xarray_gpuzarr.configure(max_requests=32, index_cache_nbytes="1 MiB")["index_cache_nbytes"]
    1048576
    >>> xarray_gpuzarr.configure()["index_cache_nbytes"]  # the default again
    67108864
    """
    choose_options(options)
    if share:
        native_device().share("always")
    return options_in_force()
