"""`configure`: one function for all settings of a process, and for the memory that reads share with CuPy and RMM."""

from __future__ import annotations

from typing import Any

from xarray_gpuzarr.process.configuration import choose_options, options_in_force


def configure(*, share: bool = False, **options: object) -> dict[str, Any]:
    """Set, for this process and from the next read on, how stores are asked for bytes and what memory a GPU may give.

    Parameters
    ----------
    share : bool
        Also make the memory resource of reads RMM's current one on the current device, and let CuPy allocate through
        RMM: one pool for reads and for what is computed from them. Needs a GPU.
    **options
        Fields of `FetchOptions` and `ResourceOptions`; those left out go back to the environment's value or the
        default. Sizes may carry a unit: ``"64 KiB"``, ``"2GB"``.

    Returns
    -------
    dict
        All options that are in force now, as keywords of this function.

    Raises
    ------
    OptionError
        An unknown name or an unusable value. Nothing has changed then.

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
        from xarray_gpuzarr.cuda import device  # noqa: PLC0415  # imports CuPy and RMM

        device.native_device().share("always")
    return options_in_force()
