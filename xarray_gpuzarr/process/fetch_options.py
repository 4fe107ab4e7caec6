"""`FetchOptions`: how bytes are requested from stores, and how much of what was read is kept.

The record in force is set by `configure` or by the environment, and `fetch_options` returns it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from xarray_gpuzarr.process.settings import ActiveSettings, check_number, numbers_from_environment

_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How bytes are requested from stores, and what is kept of what was read.

    Raises
    ------
    OptionError
        A value has the wrong type or is too small.
    """

    max_gap_nbytes: int | None = None
    """Largest gap in bytes between two chunks of a shard that is read rather than skipped. None: 64 KiB in local files.
    In other stores 32 KiB, or up to 1 MiB if there would be many requests."""
    max_request_nbytes: int | None = None
    """Longest request in bytes that covers several chunks.

    Outside of local files, a shard is requested whole, together with its index, if a read takes at least half of its
    chunks, and its decoded size and its index together are at most four times this length.

    None stands for these lengths:

    - local files: 2 MiB; 8 MiB for raw bytes that are read directly into the result, and up to 8 MiB for
      bytes that go to a GPU;
    - other stores: 1 MiB; 4 MiB for long raw chunks and in the rule for whole shards, and up to 4 MiB for
      bytes that go to a GPU.
    """
    max_requests: int = 64
    """Number of concurrent requests of this process to a server, or to a store whose server is unknown. Does not apply
    to local files."""
    index_cache_nbytes: int = 64 * _MIB
    """Host memory in bytes for cached shard indexes. 0: none are cached."""
    cache_nbytes: int = 256 * _MIB
    """Host memory in bytes for decoded chunks that reads used only a part of. 0: none are kept."""
    ahead_nbytes: int = 64 * _MIB
    """Largest number of encoded bytes, of whole shards and of chunks that are objects, that this process requests
    before the dask tasks that decode them run. Does not apply to local files. 0: each task requests its own bytes, and
    occupies its thread while it waits."""

    def __post_init__(self) -> None:
        if self.max_gap_nbytes is not None:
            check_number("max_gap_nbytes", self.max_gap_nbytes, 0)
        if self.max_request_nbytes is not None:
            check_number("max_request_nbytes", self.max_request_nbytes, 1)
        check_number("max_requests", self.max_requests, 1)
        check_number("index_cache_nbytes", self.index_cache_nbytes, 0)
        check_number("cache_nbytes", self.cache_nbytes, 0)
        check_number("ahead_nbytes", self.ahead_nbytes, 0)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FetchOptions:
        """Return the options that ``XARRAY_GPUZARR_<FIELD>`` variables set, with defaults for all others.

        Parameters
        ----------
        environ : mapping of str to str
            Sizes may carry a unit: ``67108864``, ``64 MiB``, ``2GB``.

        Raises
        ------
        OptionError
            The value of a variable is invalid.
        """
        return cls(**numbers_from_environment((f.name for f in fields(cls)), environ))


in_force: ActiveSettings[FetchOptions] = ActiveSettings(FetchOptions)


def fetch_options() -> FetchOptions:
    """Return the options in force."""
    # The record is known after the first read, and then the call of `get` is saved.
    return in_force.options or in_force.get()
